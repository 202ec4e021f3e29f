"""`shardctl shards` apply, delete, diff, edit and label: the verbs of `broadsheet.cli.specs`."""

from __future__ import annotations

from broadsheet.cli.shards.specs import SHARDS
from broadsheet.cli.specs.apply import APPLY
from broadsheet.cli.specs.delete import DELETE
from broadsheet.cli.specs.diff import DIFF
from broadsheet.cli.specs.edit import EDIT
from broadsheet.cli.specs.label import LABEL

apply_shards = APPLY.command(
    SHARDS,
    """Create, update and delete shards as YAML files say.

    With -f, what is as the file says is left alone, and what is not there is created: a list written to a file is a
    backup. A file's revision guards against changes of others.

    Recovery logs that specs name and that are not there are created after a question, like another log below their
    prefix, or with the stores and the replication of the shard's first source.

    \b
    Examples:
      shardctl shards apply -f shards.yaml --dry-run
      shardctl shards apply -f shards.yaml --dry-run=server
      shardctl shards apply -f declared/
      shardctl shards list -o yaml > backup.yaml
      shardctl shards apply -f backup.yaml
      shardctl shards list -o yaml | sed s/1s/2s/ |
          shardctl shards apply --specs -
    """,
)

delete_shards = DELETE.command(
    SHARDS,
    """Delete shards: each SHARD, or those that match.

    Their stores, hints and recovery logs stay.

    \b
    Examples:
      shardctl shards delete flights-000 flights-001
      shardctl shards delete -l app=flights --dry-run
      shardctl shards delete -l app=flights --yes
    """,
)

diff_shards = DIFF.command(
    SHARDS,
    """Show what `shardctl shards apply -f` would change.

    Ends with status 6 if there is a difference.

    \b
    Examples:
      shardctl shards diff -f shards.yaml
      shardctl shards diff -f declared/ && echo as declared
    """,
)

edit_shards = EDIT.command(
    SHARDS,
    """Edit specs of shards in $EDITOR.

    The difference is shown and, on a terminal, confirmed. What somebody else changed in the meantime is not
    overwritten.

    \b
    Examples:
      shardctl shards edit flights-000
      EDITOR='code --wait' shardctl shards edit -l app=flights
    """,
)

label_shards = LABEL.command(
    SHARDS,
    """Set and remove labels of a shard, or of those that match.

    \b
    Examples:
      shardctl shards label flights-000 stage=test
      shardctl shards label flights-000 stage=live --overwrite
      shardctl shards label -l app=flights stage-
    """,
)
