"""`delete` of shards and journals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.output import confirm, counted
from broadsheet.cli.spec_changes import apply_changes
from broadsheet.cli.spec_kind import JOURNALS, SHARDS, Change, Kind, SpecT, Stored
from broadsheet.cli.spec_verb import (
    Selection,
    SpecVerb,
    dry_run_option,
    selection_parameters,
    yes_option,
)

NAMES_SHOWN = 10
"""Names in a question; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions(Selection):
    """Options of `delete`."""

    dry_run: bool
    yes: bool


async def _delete(kind: Kind[SpecT], connection: Connection, options: DeleteOptions) -> None:
    async with kind.over(connection) as client:
        listed = await options.of(client)
        if not options.dry_run:
            what = f"{counted(len(listed), kind.noun)}: {_names(listed)}"
            confirm(f"Delete {what}?", yes=options.yes)
            await apply_changes(client, [Change(each.name, None, each.revision) for each in listed])
    suffix = " (dry run)" if options.dry_run else ""
    for each in listed:
        click.echo(f"{each.name} deleted{suffix}")


def _names(listed: Sequence[Stored[SpecT]]) -> str:
    more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(each.name for each in listed[:NAMES_SHOWN]) + more


_DELETE = SpecVerb(
    "delete",
    DeleteOptions,
    lambda kind: (*selection_parameters(kind), dry_run_option, yes_option),
    _delete,
)

delete_shards = _DELETE.command(
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
delete_journals = _DELETE.command(
    JOURNALS,
    """Delete journals: each JOURNAL, or those that match.

    The embedded broker removes their content, too. `shardctl journals describe` tells which shards read one.

    \b
    Examples:
      shardctl journals delete flights/part-000
      shardctl journals delete -l 'name:prefix=flights/' --dry-run
      shardctl journals delete -l 'name:prefix=flights/' --yes
    """,
)
