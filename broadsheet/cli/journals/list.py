"""`shardctl journals list`: journals."""

from __future__ import annotations

from broadsheet.cli.journals.specs import JOURNALS
from broadsheet.cli.specs.list import LIST

list_journals = LIST.command(
    JOURNALS,
    """List journals.

    All of them, each JOURNAL, or those that match.

    \b
    Examples:
      shardctl journals list
      shardctl journals list -l 'name:prefix=flights/' -L my-label
      shardctl journals list -o wide
      shardctl journals list -o jsonpath='{.journals[*].spec.name}'
      shardctl journals list -o yaml > journals.yaml
    """,
)
