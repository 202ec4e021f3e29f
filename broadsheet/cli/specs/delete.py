"""`delete` of shards and journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.options import DryRun, Yes, command_options
from broadsheet.cli.output.messages import confirm, counted
from broadsheet.cli.specs.changes import apply_changes, require_unused
from broadsheet.cli.specs.kind import Change, Kind, SpecT, Stored
from broadsheet.cli.specs.verb import Force, Selection, SpecVerb

NAMES_SHOWN = 10
"""Names in a question; the rest are counted."""


@command_options
class _DeleteOptions(Selection):
    dry_run: DryRun
    yes: Yes
    force: Force = False


async def _delete(kind: Kind[SpecT], connection: Connection, options: _DeleteOptions) -> None:
    async with kind.over(connection) as client:
        listed = await options.of(client)
        changes: list[Change[SpecT]] = [Change(each.name, None, each.revision) for each in listed]
        # Before the question: an answer would promise what is refused then.
        if not options.force:
            await require_unused(client, changes)
        if not options.dry_run:
            what = f"{counted(len(listed), kind.noun)}: {_names(listed)}"
            confirm(f"Delete {what}?", yes=options.yes)
            # A shard may have come in between.
            await apply_changes(client, changes, force=options.force)
    suffix = " (dry run)" if options.dry_run else ""
    for each in listed:
        click.echo(f"{each.name} deleted{suffix}")


def _names(listed: Sequence[Stored[SpecT]]) -> str:
    more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return ", ".join(each.name for each in listed[:NAMES_SHOWN]) + more


DELETE: Final = SpecVerb("delete", _DeleteOptions, _delete)
