"""Names of shards, journals, members and lease stores on a command line; the shell completes those of a cluster.

Completion must never print, nor take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeAlias

import click

from broadsheet.cli.connection import Connection, quiet_connection
from broadsheet.cli.errors import option_values
from broadsheet.leases.addresses import StoreAddress, parse_store_address
from broadsheet.runtime.errors import BroadsheetError, ValidationError
from broadsheet.runtime.logs import log_to_stderr
from broadsheet.wire.alphabet import validate_journal
from broadsheet.wire.validation_shard import validate_shard_id

COMPLETION_SECONDS_MAX = 2.0


class _Name(click.ParamType):  # type: ignore[type-arg]  # generic in later versions only
    """A name that some servers could have; others would be refused only once a server is reached."""

    name = "name"

    def __init__(self, check: Callable[[str, str], None]) -> None:
        """Take what raises a `ValidationError` for a malformed name, given that and the path of its field."""
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name as it is; fails for a malformed one. Empty is none, where a name is optional."""
        try:
            if value:
                self._check(value, "")
        except ValidationError as error:
            self.fail(error.problem, param, ctx)
        return str(value)


SHARD_ID: Final = _Name(validate_shard_id)
JOURNAL_NAME: Final = _Name(validate_journal)


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


ShardId: TypeAlias = Annotated[
    str, click.argument("shard", type=SHARD_ID, shell_complete=complete_shards)
]
ShardIds: TypeAlias = Annotated[
    tuple[str, ...],
    click.argument("shards", nargs=-1, metavar="[SHARD]...", shell_complete=complete_shards),
]
JournalName: TypeAlias = Annotated[
    str, click.argument("journal", type=JOURNAL_NAME, shell_complete=complete_journals)
]
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


def store_named(text: str, name: str = "STORE") -> StoreAddress:
    """Return the store that an argument or option of a name says.

    Raises:
        WrongValueError: it is no address of a store.
    """
    with option_values({"store": name}):
        return parse_store_address(text)
