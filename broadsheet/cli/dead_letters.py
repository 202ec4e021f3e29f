"""`shardctl shards dead-letters` and `replay`: messages that a shard left out because the application failed at them.

A replay publishes a message once more, at the end of its source. Its producer is made from the letter, so that the
same letter, replayed twice, is one message to readers who count each once.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from broadsheet.cli.connection import Connection, complete_shards, connection_options, run_command
from broadsheet.cli.describe import shard_of
from broadsheet.cli.output import (
    NothingSelectedError,
    OutputFormat,
    counted,
    format_option,
    print_fields,
    print_table,
    say,
)
from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.framing import NDJSON
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.types import JsonType
from broadsheet.journals.message.uuid import Flags, MessageClock, new_producer_id
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import CONTENT_TYPE, DEAD_LETTER_JOURNAL, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

_JSON = JsonType()


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    offset: int
    """In the dead-letter journal, bytes: its name in these commands."""
    fields: dict[str, Any]
    """As it was recorded."""
    digest: bytes
    """Of all that was recorded, and where."""

    @property
    def journal(self) -> str:
        """The source that has the message, without `;meta`."""
        return str(self.fields.get("journal", "")).partition(";")[0]

    @property
    def obstacle(self) -> str:
        """The reason why it cannot be replayed; empty if it can."""
        if not self.fields.get("uuid"):
            return "it is no message, but bytes that could not be read as one"
        if "payload_bytes" in self.fields:
            return "it is too long: the letter has its beginning only"
        return ""

    def published(self) -> Sequence[bytes]:
        """Return the framed message, in pieces, with a UUID that is the letter's own.

        Raises:
            ValidationError: it is no JSON message.
        """
        clock = MessageClock()
        clock.update(datetime.fromisoformat(self.fields["at"]).timestamp())
        publisher = Publisher(clock, new_producer_id(lambda count: self.digest[:count]))
        try:
            message = _JSON.decode(b64decode(self.fields["payload_base64"]))
        except ValueError as error:
            raise ValidationError(
                f"letter {self.offset}", f"is no JSON message: {error}"
            ) from error
        publisher.publish_committed(MappedJournal(self.journal, NDJSON), message, _JSON)
        (append,) = publisher.take_appends()
        return append.content


def letter_journal(spec: ShardSpec) -> str:
    """Return the journal of a shard's dead letters.

    Raises:
        ValidationError: it has none.
    """
    journal = value_of(spec.labels, DEAD_LETTER_JOURNAL)
    if not journal:
        problem = f"shard {spec.id} has no label {DEAD_LETTER_JOURNAL}, so it leaves nothing out"
        raise ValidationError("SHARD", problem)
    return journal


async def letters_of(journals: JournalClient, spec: ShardSpec) -> list[Letter]:
    """Return the dead letters of a shard, oldest first; the journal may have those of others, too.

    Raises:
        ValidationError: the shard has no such journal.
        ServiceError: it cannot be read.
    """
    journal = letter_journal(spec)
    found = []
    async with aclosing(read_committed(journals, journal, _JSON, block=False)) as batches:
        async for batch in batches:
            for offset, flags, payload in zip(
                batch.begins.tolist(), batch.flags.tolist(), batch.payloads, strict=True
            ):
                if flags == Flags.ACK_TXN:
                    continue
                fields = _JSON.decode(payload)
                if fields.get("shard") == spec.id:
                    where = f"{journal}\0{offset}\0".encode()
                    digest = hashlib.blake2b(where + payload).digest()
                    found.append(Letter(offset, fields, digest))
    return found


@click.command("dead-letters")
@click.argument("shard", shell_complete=complete_shards)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def list_dead_letters(connection: Connection, shard: str, output: str) -> None:
    """List the messages that a shard left out, and why.

    They are in the journal that the shard's label broadsheet.dev/dead-letter-journal names. LETTER is their offset
    there, by which `shardctl shards replay` knows them.

    \b
    Examples:
      shardctl shards dead-letters flights-000
      shardctl shards dead-letters flights-000 -o json |
          jq -r '.letters[].payload_base64' | base64 -d
    """

    async def work() -> None:
        async with connection.shards() as client, connection.journals() as journals:
            found = await letters_of(journals, (await shard_of(client, shard)).spec)
        if output != OutputFormat.TABLE.value:
            rows = [{"letter": each.offset, **each.fields} for each in found]
            print_fields({"letters": rows}, OutputFormat(output))
            return
        print_table(["LETTER", "AT", "JOURNAL", "OFFSET", "CAUSE"], [_row(each) for each in found])
        if not found:
            say(f"shard {shard} left nothing out")

    run_command(work())


def _row(letter: Letter) -> list[str]:
    fields = letter.fields
    cause = " ".join(str(fields.get("cause", "")).split())
    return [
        str(letter.offset),
        str(fields.get("at")),
        letter.journal,
        str(fields.get("begin")),
        cause,
    ]


@click.command("replay")
@click.argument("shard", shell_complete=complete_shards)
@click.option(
    "--letter",
    "offsets",
    type=int,
    multiple=True,
    metavar="OFFSET",
    help="Only this letter, as `shards dead-letters` lists it; may be repeated.",
)
@click.option(
    "--shared",
    is_flag=True,
    help="Also into sources that other shards read, which get the messages once more, too.",
)
@click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
@connection_options
def replay(
    connection: Connection, shard: str, offsets: Sequence[int], shared: bool, yes: bool
) -> None:
    """Publish messages that a shard left out once more.

    Once the application can digest them. They come to the end of their source, after all that is there. A letter that
    is replayed again is the same message, which a shard that has it already does not count twice. Only JSON messages
    can be replayed.

    \b
    Examples:
      shardctl shards replay flights-000          # a dry run
      shardctl shards replay flights-000 --yes
      shardctl shards replay flights-000 --letter 4096 --yes
    """

    async def work() -> None:
        async with connection.shards() as client, connection.journals() as journals:
            spec = (await shard_of(client, shard)).spec
            chosen = _chosen(await letters_of(journals, spec), offsets)
            playable = [each for each in chosen if not each.obstacle]
            sources = {each.journal for each in playable}
            if not shared:
                await _require_unshared(client, shard, sources)
            for source in sorted(sources):
                await _require_json(journals, source)
            contents = [(each, each.published()) for each in playable]
            for letter, content in contents:
                if yes:
                    await journals.append(letter.journal, content)
                click.echo(f"{letter.offset} {'replayed' if yes else 'would be replayed'}")
        for each in chosen:
            if each.obstacle:
                say(f"letter {each.offset} is left: {each.obstacle}")
        if not yes:
            say(f"dry run: {counted(len(playable), 'message')} would be replayed; --yes does it")

    run_command(work())


def _chosen(letters: Sequence[Letter], offsets: Sequence[int]) -> list[Letter]:
    known = {each.offset: each for each in letters}
    missing = [str(offset) for offset in offsets if offset not in known]
    if missing:
        raise NothingSelectedError("--letter", f"there is no letter {', '.join(missing)}")
    return [known[offset] for offset in dict.fromkeys(offsets)] if offsets else list(letters)


async def _require_unshared(client: ShardClient, shard_id: str, sources: set[str]) -> None:
    for listed in (await client.list()).shards:
        read = {source.journal.partition(";")[0] for source in listed.spec.sources}
        if listed.spec.id != shard_id and (common := sources & read):
            problem = f"shard {listed.spec.id} reads {min(common)}, too, and would get the messages once more"
            raise ValidationError("--shared", f"{problem}; with it, that is accepted")


async def _require_json(journals: JournalClient, source: str) -> None:
    content_type = value_of((await journals.get(source)).spec.labels, CONTENT_TYPE)
    if content_type != NDJSON:
        problem = (
            f"its messages are {content_type or 'of no content type'}: publish them by a program"
        )
        raise ValidationError(source, problem)
