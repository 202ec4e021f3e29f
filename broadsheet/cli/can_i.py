"""`shardctl can-i`: what the servers permit to our credentials."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.options import argument, command_options
from broadsheet.cli.output.documents import OutputFormat, format_option, print_fields
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.specs.changes import NEVER
from broadsheet.consumer.errors import ShardError, ShardNotFoundError
from broadsheet.journals.errors import (
    IndexHasGreaterOffsetError,
    JournalNotAllowedError,
    JournalNotFoundError,
    JournalSuspendedError,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire import journal_pb2, shard_pb2
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.labels import ID, NAME, label_set, selector

NO_NAME: Final = "can-i/nothing-has-this-name"
"""Stands for the id of a question without one."""
NO_MEMBER: Final = "can-i#nothing-has-this-name"
_HIDDEN: Final = "there is none of this name, or the selector does not cover it"
_COVERED: Final = "what the selector covers"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to can-i, and the reason."""

    is_allowed: bool
    reason: str = ""


Ask = Callable[[Connection, str], Awaitable[object]]
"""Asks for something about one shard or journal, and changes nothing."""


@command_options
class _CanIOptions:
    verb: str = argument(type=click.Choice(["list", "read", "append", "apply"]))
    kind: str = argument(type=click.Choice(["shards", "journals", "members"]))
    name: str | None = argument(required=False, metavar="[ID]")
    output: Annotated[OutputFormat, format_option(OutputFormat.TABLE, OutputFormat.JSON)]


@cluster_command("can-i", _CanIOptions)
async def can_i(connection: Connection, options: _CanIOptions) -> ExitStatus:
    """Ask the servers whether our credentials permit VERB of KIND, or of the one named ID.

    The servers answer a real request that changes nothing: of keys, tokens and certificates alike. Without an ID, yes
    means that something may be permitted. Ends with status 1 if the answer is no.

    \b
    Examples:
      shardctl can-i apply shards a/b
      shardctl can-i append journals events/part-000 --token-file token
      shardctl can-i list members -o json
    """
    verb, kind, name = options.verb, options.kind, options.name
    ask = _ASKS.get((verb, kind))
    if ask is None:
        verbs = ", ".join(one for one, of in _ASKS if of == kind)
        raise click.UsageError(f"{kind}: expected one of {verbs}, got {verb}")
    if kind == "members" and name is not None:
        raise click.UsageError("members: expected no ID, because a right is to all of them")
    answer = await _answer(ask, connection, name)
    if options.output is OutputFormat.JSON:
        fields = {"allowed": answer.is_allowed, "verb": verb, "kind": kind, "id": name or ""}
        print_fields({**fields, "reason": answer.reason}, OutputFormat.JSON)
    else:
        row = ["yes" if answer.is_allowed else "no", verb, kind, name or "", answer.reason]
        print_table(["ALLOWED", "VERB", "KIND", "ID", "REASON"], [row])
    return ExitStatus.DONE if answer.is_allowed else ExitStatus.FAILED


async def _answer(ask: Ask, connection: Connection, name: str | None) -> Answer:
    try:
        await ask(connection, name or NO_NAME)
    except UnauthenticatedError as error:
        return Answer(False, str(error))
    except NotAuthorizedError as error:
        # Without an id, nothing was named that a selector could cover.
        if name is None and "does not cover" in str(error):
            return Answer(True, _COVERED)
        return Answer(False, str(error))
    except (ShardNotFoundError, JournalNotFoundError):
        return Answer(name is None, "" if name is None else _HIDDEN)
    # A refusal for another reason comes after the check of what the caller may.
    except ApplyConflictError:
        return Answer(True)
    except (
        ShardError,
        IndexHasGreaterOffsetError,
        JournalNotAllowedError,
        JournalSuspendedError,
    ) as error:
        return Answer(True, f"but at present: {error}")
    return Answer(True)


async def _list_shards(connection: Connection, name: str) -> None:
    async with connection.shards() as client:
        if not (await client.list(selector(label_set((ID, name))))).shards:
            raise ShardNotFoundError(name)


async def _read_shards(connection: Connection, name: str) -> None:
    async with connection.shards() as client:
        await client.get_hints(name)


async def _apply_shards(connection: Connection, name: str) -> None:
    change = shard_pb2.ApplyRequest.Change(delete=name, expect_mod_revision=NEVER)
    async with connection.shards() as client:
        await client.apply([change])


async def _list_journals(connection: Connection, name: str) -> None:
    async with connection.journals() as client:
        if not (await client.list(selector(label_set((NAME, name))))).journals:
            raise JournalNotFoundError(name)


async def _read_journals(connection: Connection, name: str) -> None:
    async with connection.journals() as client:
        await client.write_head(name)


async def _append_journals(connection: Connection, name: str) -> None:
    async with connection.journals() as client:
        await client.require_may_append(name)


async def _apply_journals(connection: Connection, name: str) -> None:
    change = journal_pb2.ApplyRequest.Change(delete=name, expect_mod_revision=NEVER)
    async with connection.journals() as client:
        await client.apply([change])


async def _list_members(connection: Connection, name: str) -> None:
    del name
    async with connection.allocation() as client:
        await client.members()


async def _apply_members(connection: Connection, name: str) -> None:
    del name
    async with connection.allocation() as client:
        # Such a member does not exist, which is looked at after the caller's rights.
        with suppress(ValidationError):
            await client.cordon([NO_MEMBER])


_ASKS: Final[dict[tuple[str, str], Ask]] = {
    ("list", "shards"): _list_shards,
    ("read", "shards"): _read_shards,
    ("apply", "shards"): _apply_shards,
    ("list", "journals"): _list_journals,
    ("read", "journals"): _read_journals,
    ("append", "journals"): _append_journals,
    ("apply", "journals"): _apply_journals,
    ("list", "members"): _list_members,
    ("apply", "members"): _apply_members,
}
