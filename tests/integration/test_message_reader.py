"""Reading messages of a real broker, as written and as committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowType
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED, ProtobufType
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import ContentTypeError, FramingError, JournalNotFoundError
from broadsheet.journals.message.batch import UNREADABLE, MessageBatch
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import (
    BatchOptions,
    MessageSource,
    RingLimits,
    SpanBatches,
    open_source,
    read_batches,
    read_committed,
)
from broadsheet.journals.message.uuid import MessageClock
from broadsheet.journals.reader import ReadSpan
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, label_set
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.broker import journal_spec
from tests.support.eventually import DEADLINE_SECONDS

JSON_TYPE = JsonType()
JOURNAL = "tests/messages"
MAPPED = MappedJournal(JOURNAL, NDJSON)


def spec_of(content_type: str = NDJSON) -> JournalSpec:
    """Return the spec of the tests' journal."""
    labels = label_set((CONTENT_TYPE, content_type)) if content_type else label_set()
    return journal_spec(JOURNAL, labels=labels)


async def create(journals: JournalClient, content_type: str = NDJSON) -> None:
    """Create the tests' journal."""
    await journals.apply([ApplyRequest.Change(upsert=spec_of(content_type))])


def publisher_of(producer: int) -> Publisher:
    """Return a publisher whose clock has been moved on."""
    clock = MessageClock()
    clock.update(1_700_000_000)
    return Publisher(clock, producer)


async def append_published(journals: JournalClient, publisher: Publisher) -> None:
    """Append what was published."""
    for append in publisher.take_appends():
        await journals.append(append.journal, append.content)


async def publish(journals: JournalClient, publisher: Publisher, *numbers: int) -> None:
    """Publish messages {"n": number} uncommitted."""
    for number in numbers:
        publisher.publish_uncommitted(MAPPED, {"n": number}, JSON_TYPE)
    await append_published(journals, publisher)


async def acknowledge(journals: JournalClient, publisher: Publisher) -> None:
    """Acknowledge what was published."""
    for intent in publisher.build_ack_intents():
        await journals.append(intent.journal, intent.content)


async def collected(batches: AsyncGenerator[MessageBatch, None]) -> list[Any]:
    """Return the `n` of every message; None for acknowledgements."""
    async with aclosing(batches):
        return [message.get("n") async for batch in batches for message in batch.messages()]


async def test_read_batches_yields_everything_with_offsets_and_meta(
    journals: JournalClient,
) -> None:
    """Plan: two producers, one of which never commits. Why: sequencing is another layer."""
    await create(journals)
    first, second = publisher_of(0x010000000001), publisher_of(0x010000000002)
    await publish(journals, first, 1, 2)
    await publish(journals, second, 3)
    await acknowledge(journals, first)

    batches = [
        batch async for batch in read_batches(journals, f"{JOURNAL};meta", JSON_TYPE, block=False)
    ]

    assert {batch.journal for batch in batches} == {f"{JOURNAL};meta"}
    assert [m.get("n") for batch in batches for m in batch.messages()] == [1, 2, 3, None]
    begins = [begin for batch in batches for begin in batch.begins.tolist()]
    ends = [end for batch in batches for end in batch.ends.tolist()]
    assert begins == [0, *ends[:-1]]
    assert ends[-1] == await journals.write_head(JOURNAL)


async def test_read_batches_cuts_batches_to_limits(journals: JournalClient) -> None:
    """Plan: limits of two messages, then of bytes below one message. Why: a batch is held in memory whole."""
    await create(journals)
    await publish(journals, publisher_of(1 << 40), 1, 2, 3, 4, 5)

    for options, expected in (
        (BatchOptions(messages_max=2), [2, 2, 1]),
        (BatchOptions(bytes_max=1), [1] * 5),
    ):
        source = await open_source(journals, JOURNAL, JSON_TYPE, options=options)
        sizes = [len(batch) async for batch in source.batches(block=False)]
        assert sizes == expected


@pytest.mark.parametrize("ring_messages", [1, 2, 8192])
async def test_read_committed_yields_only_what_is_acknowledged(
    journals: JournalClient, ring_messages: int
) -> None:
    """Plan: interleaved producers, one never commits; rings too small and large enough. Why: both paths agree."""
    await create(journals)
    first, second = publisher_of(0x010000000001), publisher_of(0x010000000002)
    await publish(journals, first, 1, 2)
    await publish(journals, second, 11, 12)
    await publish(journals, first, 3)
    await acknowledge(journals, first)
    await publish(journals, first, 4)
    await acknowledge(journals, first)

    options, ring = BatchOptions(messages_max=2), RingLimits(messages_max=ring_messages)
    source = await open_source(journals, JOURNAL, JSON_TYPE, options=options)
    numbers = await collected(source.committed(block=False, ring=ring))
    by_default = await collected(read_committed(journals, JOURNAL, JSON_TYPE, block=False))

    assert numbers == [1, 2, 3, None, 4, None]
    assert by_default == numbers


@pytest.mark.parametrize("content_type", [NDJSON, ARROW_STREAM])
async def test_rows_of_a_table_are_read_once_they_are_acknowledged(
    journals: JournalClient, content_type: str
) -> None:
    """Plan: tables of two transactions, the second not acknowledged; then what the first would append again. Why: rows
    that are published together commit together, and a repeat adds nothing.
    """
    await create(journals, content_type)
    message_type: Any = JSON_TYPE if content_type == NDJSON else ArrowType()
    publisher, mapped = publisher_of(1 << 40), MappedJournal(JOURNAL, content_type)
    table = pa.table({"n": range(50_000), "s": ["x" * 200] * 50_000})
    publisher.publish_batch(mapped, table, message_type)
    [append] = publisher.take_appends()
    intents = publisher.build_ack_intents()
    for content in (append.content, [intents[0].content], append.content):
        await journals.append(JOURNAL, content)
    publisher.publish_batch(mapped, table, message_type)
    await append_published(journals, publisher)

    batches = read_committed(journals, JOURNAL, message_type, block=False)
    async with aclosing(batches):
        read = [batch.to_arrow(table.schema) async for batch in batches]
    assert pa.concat_tables(read).column("n").drop_null().to_pylist() == list(range(50_000))


async def test_read_committed_blocking_waits_for_the_acknowledgement(
    journals: JournalClient,
) -> None:
    """Plan: read first, then publish and commit. Why: this is how a shard follows a journal."""
    await create(journals)
    publisher = publisher_of(1 << 40)
    seen: list[Any] = []
    complete = asyncio.Event()

    async def follow() -> None:
        batches = read_committed(journals, JOURNAL, JSON_TYPE)
        async with aclosing(batches):
            async for batch in batches:
                seen.extend(message.get("n") for message in batch.messages())
                if seen[-1] is None:
                    complete.set()

    async with TaskGroup() as group, asyncio.timeout(DEADLINE_SECONDS):
        group.start_soon(follow(), name="follow")
        await publish(journals, publisher, 1, 2)
        await acknowledge(journals, publisher)
        await complete.wait()
        group.stop()

    assert seen == [1, 2, None]


async def test_read_batches_protobuf_messages_round_trip(journals: JournalClient) -> None:
    """Plan: length-prefixed protobuf, a garbage append in between. Why: one bad append must not hide the rest."""
    await create(journals, PROTOBUF_FIXED)
    protobuf_type = ProtobufType(Checkpoint.Source.ProducerEntry, uuid_field="id")
    publisher = publisher_of(1 << 40)
    mapped = MappedJournal(JOURNAL, PROTOBUF_FIXED)
    for begin in (1, 2):
        message = Checkpoint.Source.ProducerEntry(state=Checkpoint.ProducerState(begin=begin))
        publisher.publish_committed(mapped, message, protobuf_type)
        await append_published(journals, publisher)
        await journals.append(JOURNAL, b"garbage")
    await journals.append(JOURNAL, framing_for(PROTOBUF_FIXED).frame(b""))

    with capture_logs() as logs:
        batches = [
            batch async for batch in read_batches(journals, JOURNAL, protobuf_type, block=False)
        ]

    decoded = [message.state.begin for batch in batches for message in batch.messages()]
    assert decoded == [1, 2, 0]
    skipped = [log for log in logs if log["event"] == "framing.desynchronized"]
    assert sum(log["end"] - log["begin"] for log in skipped) == 2 * len(b"garbage")


async def test_read_batches_bad_line_yields_what_precedes_and_names_its_offset(
    journals: JournalClient,
) -> None:
    """Plan: a good line, then no JSON. Why: an operator must find the byte, and lose nothing before it."""
    await create(journals)
    await journals.append(JOURNAL, b'{"n":1}\nnot json\n')
    seen: list[Any] = []

    with pytest.raises(FramingError, match=f"{JOURNAL} .* offset 8: not a JSON message"):
        async for batch in read_batches(journals, JOURNAL, JSON_TYPE, block=False):
            seen.extend(batch.messages())

    assert seen == [{"n": 1}]


async def test_read_batches_ending_within_a_frame_is_an_error(journals: JournalClient) -> None:
    """Plan: a last line without newline. Why: a message that was cut must not go unnoticed."""
    await create(journals)
    await journals.append(JOURNAL, b'{"n":1}\n{"n":')

    with pytest.raises(FramingError, match="offset 8: the read ended after 5 bytes of a frame"):
        await collected(read_batches(journals, JOURNAL, JSON_TYPE, block=False))

    source = await open_source(journals, JOURNAL, JSON_TYPE)
    assert await collected(source.batches(block=False, end_offset=8)) == [1]


async def test_read_batches_unfit_journals_are_refused_by_name(journals: JournalClient) -> None:
    """Plan: missing; without content type; of another one. Why: these are mistakes in specs, the name finds them."""
    with pytest.raises(JournalNotFoundError, match=JOURNAL):
        await collected(read_batches(journals, JOURNAL, JSON_TYPE, block=False))

    await create(journals, "")
    with pytest.raises(ContentTypeError, match=f"{JOURNAL} has missing content type"):
        await collected(read_batches(journals, JOURNAL, JSON_TYPE, block=False))

    listed = await journals.get(JOURNAL)
    change = ApplyRequest.Change(
        expect_mod_revision=listed.mod_revision, upsert=spec_of(PROTOBUF_FIXED)
    )
    await journals.apply([change])
    with pytest.raises(ContentTypeError, match=r"x-protobuf-fixed.*x-ndjson"):
        await collected(read_batches(journals, JOURNAL, JSON_TYPE, block=False))


@pytest.mark.parametrize(
    ("spans", "begins", "dropped"),
    [
        ([ReadSpan(0, b"{}\n{"), ReadSpan(90, b"{}\n", jumped=True)], [0, 90], [(3, 4)]),
        ([ReadSpan(0, b"{}\n"), ReadSpan(90, b"{}\n", jumped=True)], [0, 90], []),
        ([ReadSpan(90, b"{}\n", jumped=True), ReadSpan(93, b"{}\n")], [90, 93], []),
    ],
)
async def test_offset_jump_drops_a_partial_frame_with_a_warning(
    journals: JournalClient,
    spans: Sequence[ReadSpan],
    begins: list[int],
    dropped: list[tuple[int, int]],
) -> None:
    """Plan: a hole within a frame, between frames, at the start. Why: bytes of two messages must never be joined."""
    source = MessageSource(journals, JOURNAL, spec=spec_of(), message_type=JSON_TYPE)
    taken = SpanBatches(source)

    with capture_logs() as logs:
        batches = [taken.take(span) for span in spans]

    assert [begin for batch, _ in batches for begin in batch.begins.tolist()] == begins
    assert [error for _, error in batches] == [None] * len(spans)
    assert [(log["begin"], log["end"]) for log in logs] == dropped


async def test_range_that_ends_with_damage_is_read_again(journals: JournalClient) -> None:
    """Plan: read around damage in a range that ends behind junk, before the message that shows the junk's end. Why: a
    transaction is read again up to its acknowledgement, and what stands before that may be junk.
    """
    await create(journals, PROTOBUF_FIXED)
    frame = framing_for(PROTOBUF_FIXED).frame(b"")
    await journals.append(JOURNAL, frame + b"junk!" + frame)
    kind = ProtobufType(Checkpoint.Source, uuid_field="resume")
    options = BatchOptions(read_around=True)
    source = MessageSource(
        journals, JOURNAL, spec=spec_of(PROTOBUF_FIXED), message_type=kind, options=options
    )

    again = await _whole(source, end_offset=len(frame) + 5)
    whole = await _whole(source, end_offset=2 * len(frame) + 5)

    assert again.begins == [0]
    assert whole.begins.tolist() == [0, 8, 13]
    assert whole.flags.tolist() == [0, UNREADABLE, 0]
    assert whole.payloads[1] == b"junk!"


async def _whole(source: MessageSource, *, end_offset: int) -> MessageBatch:
    """Return all up to an offset as one batch."""
    async with aclosing(source.batches(end_offset=end_offset, block=False)) as batches:
        return MessageBatch.joined([batch async for batch in batches])
