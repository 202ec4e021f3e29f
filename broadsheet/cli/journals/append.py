"""`shardctl journals append`: bytes of a file, or of standard input, into a journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.journals.line_check import LineCheck, line_check
from broadsheet.cli.names import JournalName
from broadsheet.cli.options import command_options, flag, option
from broadsheet.cli.output.messages import say
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError, RegisterMismatchError
from broadsheet.journals.message.division import UNDIVIDED, is_divided
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import AppendResponse

APPEND_BYTES_MAX = 4 * 1024 * 1024
"""Input read before it is appended; whole lines with `--lines`, so that no append splits one."""


@command_options
class _AppendOptions:
    journal: JournalName
    stream: BinaryIO = option(
        "What to append; standard input if absent.",
        "-f",
        "--file",
        type=click.File("rb"),
        default="-",
    )
    lines: bool = flag(
        "Never split a line over two appends, and refuse lines that readers of the journal's content type refuse."
    )


@cluster_command("append", _AppendOptions)
async def append_journal(connection: Connection, options: _AppendOptions) -> None:
    """Append bytes to a journal. Each append of at most 4 MiB is atomic.

    Bytes are appended as they are. `shardctl journals publish` writes messages with UUIDs, of any content type.

    \b
    Examples:
      shardctl journals append my/journal -f data.bin
      generate | shardctl journals append my/journal --lines
    """
    journal = options.journal
    async with connection.journals() as client:
        check = await _check_of(client, journal) if options.lines else None
        appended = ""
        try:
            for content in _blocks(options.stream, whole_lines=options.lines):
                checked = content if check is None else check.checked(content)
                if not checked:
                    continue
                commit = (await _append(client, journal, checked)).commit
                begin = appended.partition(",")[0] or f"[{commit.begin}"
                appended = f"{begin}, {commit.end})"
            if check is not None:
                check.require_complete()
        except ValidationError as error:
            error.add_note(f"appended before it: {appended or 'nothing'}")
            raise
    say(f"appended {appended} to {journal}" if appended else "nothing to append")


async def _append(client: JournalClient, journal: str, content: bytes) -> AppendResponse:
    """Append to a journal that was not divided.

    Raises:
        ValidationError: it was: bytes behind its seal would be read out of order, or not at all.
    """
    try:
        return await client.append(journal, content, check_registers=UNDIVIDED)
    except RegisterMismatchError as error:
        if not is_divided(error.registers):
            raise
        raise ValidationError(
            "journal",
            f"{journal} was divided by key, and takes nothing new: publish messages (`shardctl journals publish`), "
            "which go into its parts",
        ) from error


async def _check_of(client: JournalClient, journal: str) -> LineCheck | None:
    try:
        return line_check((await client.get(journal)).spec)
    except JournalNotFoundError:
        # It may be hidden from a token that may only append; if it is not there, the append says so.
        return None


def _blocks(stream: BinaryIO, *, whole_lines: bool) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(APPEND_BYTES_MAX - len(rest)):
        content = rest + block
        cut = content.rfind(b"\n") + 1 if whole_lines else len(content)
        if cut == 0 and len(content) >= APPEND_BYTES_MAX:
            raise ValidationError("--lines", f"a line exceeds {APPEND_BYTES_MAX} bytes")
        if cut:
            yield content[:cut]
        rest = content[cut:]
    if rest:
        yield rest
