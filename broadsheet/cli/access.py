"""`shardctl token` and `shardctl can-i`: make tokens, and ask servers what a caller may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from broadsheet.cli.command import run_command
from broadsheet.cli.connection import Connection, connection_options
from broadsheet.cli.durations import parse_duration
from broadsheet.cli.errors import errors_in_one_line
from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.cli.output.documents import OutputFormat, format_option, print_fields
from broadsheet.cli.output.tables import print_table
from broadsheet.consumer.errors import ShardError, ShardNotFoundError
from broadsheet.journals.errors import (
    IndexHasGreaterOffsetError,
    JournalNotAllowedError,
    JournalNotFoundError,
    JournalSuspendedError,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import Claims, KeyedAuth, capability_text, keys_from, parse_capability
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire import journal_pb2, shard_pb2
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.labels import ID, NAME, label_set, selector
from broadsheet.wire.selector_text import format_selector, parse_selector

NOBODY: Final = "can-i/nothing-has-this-name"
"""Stands for the id of a question without one."""
NO_MEMBER: Final = "can-i#nothing-has-this-name"
NEVER: Final = 1 << 62
"""A revision that no spec has: a change that expects it is judged, and never done."""
_HIDDEN: Final = "there is none of this name, or the selector does not cover it"
_COVERED: Final = "what the selector covers"


@click.command()
@click.option(
    "-c",
    "--capability",
    "capabilities",
    multiple=True,
    required=True,
    metavar="NAME",
    help="LIST, READ, APPEND, APPLY, REPLICATE, ALL, or an application's number; repeat it for more.",
)
@click.option(
    "-l", "--selector", "selected", default="", help="What it covers, e.g. team=a; absent: all."
)
@click.option("--life", default="1h", help="How long it is valid, e.g. 15m or 24h.")
@click.option("--subject", default="", help="Whom it is for; the audit log names them.")
@click.option("--auth-keys", envvar="AUTH_KEYS", default="", show_default=False, help="The keys.")
@click.option(
    "--auth-keys-file",
    envvar="AUTH_KEYS_FILE",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="File with the keys, the first of which signs.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["token", "json", "table"]),
    default="token",
    help="The token alone, or what it says as well.",
)
def token(
    capabilities: tuple[str, ...],
    selected: str,
    life: str,
    subject: str,
    auth_keys: str,
    auth_keys_file: Path | None,
    output: str,
) -> None:
    """Print a token signed with the cluster's keys.

    Give it to callers that should not have the keys: `--token-file` shows it. A token cannot be withdrawn before it
    ends, except by rotating the keys: keep its life short.

    \b
    Examples:
      shardctl token -c LIST -c READ -l team=a --auth-keys-file keys > token
      shardctl token -c APPLY --life 15m --subject maria -o json
    """
    with errors_in_one_line():
        claims = _claims(capabilities, selected, life, subject)
        keys = keys_from(auth_keys, auth_keys_file)
        if not keys:
            raise ValidationError("--auth-keys-file", "expected the file of the keys that sign")
        signed = KeyedAuth(keys).sign(claims)
        if output == "token":
            click.echo(signed)
            return
        assert claims.expires_at is not None, "a token ends"
        fields = {
            "capabilities": capability_text(claims.capability),
            "selector": format_selector(claims.selector),
            "subject": claims.subject,
            "expires_at": claims.expires_at.isoformat(timespec="seconds"),
            "token": signed,
        }
        if output == "json":
            print_fields(fields, OutputFormat.JSON)
        else:
            print_table(["FIELD", "VALUE"], [[name, text] for name, text in fields.items()])


def _claims(capabilities: tuple[str, ...], selected: str, life: str, subject: str) -> Claims:
    duration = parse_duration(life, "--life").ToTimedelta()
    if duration <= timedelta():
        raise ValidationError("--life", f"expected more than nothing, got {life}")
    total = parse_capability(capabilities[0], "--capability")
    for each in capabilities[1:]:
        total |= parse_capability(each, "--capability")
    return Claims(
        capability=total,
        selector=parse_selector(selected),
        expires_at=datetime.now(UTC) + duration,
        subject=subject,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to can-i, and the reason."""

    is_allowed: bool
    reason: str = ""


Ask = Callable[[Connection, str], Awaitable[object]]
"""Asks for something about one shard or journal, and changes nothing."""


@click.command("can-i")
@click.argument("verb", type=click.Choice(["list", "read", "append", "apply"]))
@click.argument("kind", type=click.Choice(["shards", "journals", "members"]))
@click.argument("name", required=False, metavar="[ID]")
@format_option(OutputFormat.TABLE, OutputFormat.JSON)
@connection_options
def can_i(
    connection: Connection, verb: str, kind: str, name: str | None, output: OutputFormat
) -> None:
    """Ask the servers whether our credentials permit VERB of KIND, or of the one named ID.

    The servers answer a real request that changes nothing: of keys, tokens and certificates alike. Without an ID, yes
    means that something may be permitted. Ends with status 1 if the answer is no.

    \b
    Examples:
      shardctl can-i apply shards a/b
      shardctl can-i append journals events/part-000 --token-file token
      shardctl can-i list members -o json
    """
    ask = _ASKS.get((verb, kind))
    if ask is None:
        verbs = ", ".join(one for one, of in _ASKS if of == kind)
        raise click.UsageError(f"{kind}: expected one of {verbs}, got {verb}")
    if kind == "members" and name is not None:
        raise click.UsageError("members: expected no ID, because a right is to all of them")

    async def work() -> None:
        answer = await _answer(ask, connection, name)
        said = "yes" if answer.is_allowed else "no"
        if output is OutputFormat.JSON:
            print_fields(
                {
                    "allowed": answer.is_allowed,
                    "verb": verb,
                    "kind": kind,
                    "id": name or "",
                    "reason": answer.reason,
                },
                OutputFormat.JSON,
            )
        else:
            row = [said, verb, kind, name or "", answer.reason]
            print_table(["ALLOWED", "VERB", "KIND", "ID", "REASON"], [row])
        if not answer.is_allowed:
            raise click.exceptions.Exit(ExitStatus.FAILED)

    run_command(work())


async def _answer(ask: Ask, connection: Connection, name: str | None) -> Answer:
    try:
        await ask(connection, name or NOBODY)
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
