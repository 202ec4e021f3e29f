"""Names of shards, journals and members on a command line, which the shell completes with what the cluster has.

Completion must never print, nor take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias

import click

from broadsheet.cli.connection import Connection, quiet_connection
from broadsheet.runtime.errors import BroadsheetError
from broadsheet.runtime.logs import log_to_stderr

COMPLETION_SECONDS_MAX = 2.0


def complete_shards(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of shards that begin so."""
    del param

    async def names(connection: Connection) -> list[str]:
        async with connection.shards() as client:
            return [each.spec.id for each in (await client.list()).shards]

    return _completed(ctx, incomplete, names)


def complete_journals(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of journals that begin so."""
    del param

    async def names(connection: Connection) -> list[str]:
        async with connection.journals() as client:
            return [each.spec.name for each in (await client.list()).journals]

    return _completed(ctx, incomplete, names)


def complete_members(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of members that begin so."""
    del param

    async def names(connection: Connection) -> list[str]:
        async with connection.allocation() as client:
            return [each.id for each in (await client.members()).members]

    return _completed(ctx, incomplete, names)


def _completed(
    ctx: click.Context, incomplete: str, names: Callable[[Connection], Awaitable[list[str]]]
) -> list[str]:
    try:
        log_to_stderr("error")
        connection = quiet_connection(ctx)

        async def asked() -> list[str]:
            async with asyncio.timeout(COMPLETION_SECONDS_MAX):
                return await names(connection)

        return [name for name in asyncio.run(asked()) if name.startswith(incomplete)]
    except (BroadsheetError, TimeoutError, OSError):
        return []  # The shell shows nothing, and what is typed is still right.


ShardId: TypeAlias = Annotated[str, click.argument("shard", shell_complete=complete_shards)]
ShardIds: TypeAlias = Annotated[
    tuple[str, ...],
    click.argument("shards", nargs=-1, metavar="[SHARD]...", shell_complete=complete_shards),
]
JournalName: TypeAlias = Annotated[str, click.argument("journal", shell_complete=complete_journals)]
JournalNames: TypeAlias = Annotated[
    tuple[str, ...],
    click.argument("journals", nargs=-1, metavar="[JOURNAL]...", shell_complete=complete_journals),
]
MemberIds: TypeAlias = Annotated[
    tuple[str, ...],
    click.argument(
        "members", nargs=-1, required=True, metavar="MEMBER...", shell_complete=complete_members
    ),
]
