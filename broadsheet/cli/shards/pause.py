"""`pause` and `resume` of shards."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import click

from broadsheet.cli.connection import Connection
from broadsheet.cli.shards.specs import SHARDS
from broadsheet.cli.specs.changes import apply_changes
from broadsheet.cli.specs.kind import Change, Kind
from broadsheet.cli.specs.verb import Selection, SpecVerb
from broadsheet.wire.shard_pb2 import ShardSpec


async def _pause(
    kind: Kind[ShardSpec], connection: Connection, options: Selection, *, paused: bool
) -> None:
    async with kind.over(connection) as client:
        listed = await options.of(client)
        changes = []
        for each in listed:
            if each.spec.disable != paused:
                spec = deepcopy(each.spec)
                spec.disable = paused
                changes.append(Change(each.name, spec, each.revision))
        await apply_changes(client, changes)
    changed = {change.name for change in changes}
    word = "paused" if paused else "resumed"
    for each in listed:
        click.echo(f"{each.name} {word if each.name in changed else 'unchanged'}")


def _verb(name: str, *, paused: bool) -> SpecVerb[Selection]:
    return SpecVerb(name, Selection, partial(_pause, paused=paused))


pause_shards = _verb("pause", paused=True).command(
    SHARDS,
    """Pause shards: they keep their state, and no member serves them.

    Sets `disable` in their specs. A paused shard finishes its transaction, and goes on from there when it is resumed;
    recovery logs, stores and hints stay.

    \b
    Examples:
      shardctl shards pause flights-000
      shardctl shards pause -l app=flights
    """,
)
resume_shards = _verb("resume", paused=False).command(
    SHARDS,
    """Let members serve paused shards again.

    \b
    Examples:
      shardctl shards resume flights-000
      shardctl shards resume -l app=flights
    """,
)
