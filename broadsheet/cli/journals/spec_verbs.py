"""`shardctl journals` apply, delete, diff, edit and label: the verbs of `broadsheet.cli.specs`."""

from __future__ import annotations

from broadsheet.cli.journals.specs import JOURNALS
from broadsheet.cli.specs.apply import APPLY
from broadsheet.cli.specs.delete import DELETE
from broadsheet.cli.specs.diff import DIFF
from broadsheet.cli.specs.edit import EDIT
from broadsheet.cli.specs.label import LABEL

apply_journals = APPLY.command(
    JOURNALS,
    """Create, update and delete journals as YAML files say.

    With -f, what is as the file says is left alone, and what is not there is created: a list written to a file is a
    backup of the specs, not of content. A file's revision guards against changes of others.

    \b
    Examples:
      shardctl journals apply -f journals.yaml --dry-run
      shardctl journals apply -f -  < journals.yaml
      shardctl journals list -o yaml > backup.yaml
      shardctl journals apply -f backup.yaml
    """,
)

delete_journals = DELETE.command(
    JOURNALS,
    """Delete journals: each JOURNAL, or those that match.

    The embedded broker removes their content, too. A journal that a shard of --address reads, records into or leaves
    messages in is refused, and the shards are named, unless --force is given.

    \b
    Examples:
      shardctl journals delete flights/part-000
      shardctl journals delete -l 'name:prefix=flights/' --dry-run
      shardctl journals delete -l 'name:prefix=flights/' --yes
    """,
)

diff_journals = DIFF.command(
    JOURNALS,
    """Show what `shardctl journals apply -f` would change.

    Ends with status 6 if there is a difference.

    \b
    Examples:
      shardctl journals diff -f journals.yaml
      shardctl journals diff -f declared/ && echo as declared
    """,
)

edit_journals = EDIT.command(
    JOURNALS,
    """Edit specs of journals in $EDITOR.

    The difference is shown and, on a terminal, confirmed. What somebody else changed in the meantime is not
    overwritten.

    \b
    Examples:
      shardctl journals edit flights/part-000
      shardctl journals edit -l 'name:prefix=flights/'
    """,
)

label_journals = LABEL.command(
    JOURNALS,
    """Set and remove labels of a journal, or of those that match.

    \b
    Examples:
      shardctl journals label flights/part-000 stage=test
      shardctl journals label -l 'name:prefix=flights/' stage-
    """,
)
