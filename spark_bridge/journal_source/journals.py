"""Lists the journals that a read selects, and the states in which it begins. Driver only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.journals.guard import Present
from broadsheet.journals.message.uuid import clock_at
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.codecs import tables_for
from broadsheet.spark_bridge.journal_source.journal_state import AT_THE_BEGINNING, JournalState
from broadsheet.spark_bridge.journal_source.options import ReadOptions, ReadStart
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, value_of
from broadsheet.wire.selector_text import parse_selector

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

ContentTypes = Mapping[str, str]
"""Content type of each journal."""


async def selected_specs(client: JournalClient, options: ReadOptions) -> list[JournalSpec]:
    """Return the specs of the selected journals, by ascending name."""
    listing = await client.list(parse_selector(options.selector))
    return [journal.spec for journal in listing.journals]


def content_types_of(specs: Iterable[JournalSpec]) -> dict[str, str]:
    """Return the content type of each journal, by its name."""
    return {spec.name: value_of(spec.labels, CONTENT_TYPE) for spec in specs}


async def selected_journals(client: JournalClient, options: ReadOptions) -> dict[str, str]:
    """Return the content type of each selected journal, by ascending name."""
    return content_types_of(await selected_specs(client, options))


async def write_heads(client: JournalClient, journals: list[str]) -> dict[str, int]:
    """Return the write head of each journal, bytes."""
    return {name: await client.write_head(name) for name in journals}


async def presents(client: JournalClient, journals: Iterable[str]) -> dict[str, Present]:
    """Return the brokers' answer about each journal; those that do not exist are left out."""
    found: dict[str, Present] = {}
    for name in journals:
        # It may have been deleted since it was listed.
        with suppress(JournalNotFoundError):
            found[name] = await client.present(name)
    return found


async def named_journals(client: JournalClient, journals: Iterable[str]) -> dict[str, str]:
    """Return the content type of each named journal, selected or not; those that do not exist are left out."""
    found: dict[str, str] = {}
    for name in journals:
        with suppress(JournalNotFoundError):
            journal = await client.get(name)
            found[name] = value_of(journal.spec.labels, CONTENT_TYPE)
    return found


async def states_at(
    client: JournalClient, place: ReadStart, *, content_types: ContentTypes, options: ReadOptions
) -> dict[str, JournalState]:
    """Return the state of each journal at the beginning of a read.

    Raises:
        OptionError: the option names a journal that is not selected.
    """
    journals = sorted(content_types)
    match place.kind:
        case "earliest":
            return dict.fromkeys(journals, AT_THE_BEGINNING)
        case "latest":
            heads = await write_heads(client, journals)
            return {name: JournalState(head) for name, head in heads.items()}
        case "offsets":
            offsets = await named_offsets(client, "start", place=place, journals=journals)
            return {name: JournalState(offsets.get(name, 0)) for name in journals}
        case "time":
            offsets = {
                name: await _offset_at(
                    client, name, place=place, tables=content_type, options=options
                )
                for name, content_type in content_types.items()
            }
            return {name: JournalState(offset) for name, offset in offsets.items()}


async def named_offsets(
    client: JournalClient, option: str, *, place: ReadStart, journals: list[str]
) -> dict[str, int]:
    """Return the offsets that an option names, write heads looked up.

    Raises:
        OptionError: it names a journal that is not selected.
    """
    if unknown := sorted(place.offsets.keys() - set(journals)):
        expected = f"journals that the selector selects, which are {', '.join(journals) or 'none'}"
        raise OptionError(option, expected, got=", ".join(unknown))
    return {
        name: offset if offset >= 0 else await client.write_head(name)
        for name, offset in place.offsets.items()
    }


async def _offset_at(
    client: JournalClient, journal: str, *, place: ReadStart, tables: str, options: ReadOptions
) -> int:
    """Return the offset of the first message published at or after a time; the write head if there is none."""
    assert place.time is not None, "a time was parsed"
    # In integers, because a float cannot hold today's time to the microsecond.
    microseconds = (place.time - _EPOCH) // timedelta(microseconds=1)
    clock = clock_at(microseconds * 1000)
    finder = tables_for(journal, tables, options)
    # A fragment that was last modified earlier holds no message published later.
    async with client.reader(
        journal, block=False, begin_mod_time=microseconds // 1_000_000
    ) as reader:
        expected = -1
        async for span in reader:
            # The first content, or content after a gap: an incomplete frame from before must not be continued.
            if span.offset != expected:
                finder.restart(span.offset)
            expected = span.end
            found = finder.feed(span.content)
            late = (found.clocks >= clock).nonzero()[0]
            if len(late):
                return int(found.begins[late[0]])
    return await client.write_head(journal)
