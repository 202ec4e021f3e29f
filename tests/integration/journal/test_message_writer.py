"""Publication from outside of a shard: topics, mappings and the message writer at a real broker."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.csv import CSV
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    ContentTypeError,
    JournalNotFoundError,
    NoPartitionsError,
    PartMissingError,
    PublishMessageError,
)
from broadsheet.journals.message.division import DIVIDED
from broadsheet.journals.message.partitioning import MappedJournal, field_key, modulo_mapping
from broadsheet.journals.message.reader import read_committed
from broadsheet.journals.message.uuid import Flags
from broadsheet.journals.message_writer import MessageWriter
from broadsheet.journals.topic import open_topic
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.key_range import GROUPS, KeyRange, group_of, range_labels
from broadsheet.wire.labels import CONTENT_TYPE, SPLIT_OF, label_set
from tests.support.broker import journal_spec
from tests.support.journal_in_memory import JournalInMemory, Requests
from tests.support.scripted_broker import Context, ScriptedBroker, refused

JSON = JsonType()
PARTS = ("topic/part-000", "topic/part-001")


async def _declare(
    journals: JournalClient, *names: str, content_type: str = NDJSON, **labels: str
) -> None:
    labels = {CONTENT_TYPE: content_type, **labels}
    specs = [journal_spec(name, labels=label_set(labels)) for name in names]
    await journals.apply([pb.ApplyRequest.Change(upsert=spec) for spec in specs])


async def _shown(journals: JournalClient, journal: str) -> list[Any]:
    """Return the fields of the committed messages, without metadata."""
    found = []
    async for batch in read_committed(journals, journal, JSON, block=False):
        for flags, message in zip(batch.flags.tolist(), batch.messages(), strict=True):
            if flags != Flags.ACK_TXN:
                message.pop("_meta")
                found.append(message)
    return found


async def test_writer_shows_messages_as_they_are_appended(journals: JournalClient) -> None:
    """The first thing that anybody tries: one message, and the offset up to which to wait for it."""
    await _declare(journals, PARTS[0])
    writer = MessageWriter(journals)

    writer.publish(MappedJournal(PARTS[0], NDJSON), {"key": "a"}, JSON)
    [first] = await writer.flush()
    writer.publish(MappedJournal(PARTS[0], NDJSON), {"key": "b"}, JSON)
    [second] = await writer.flush()

    assert (first.messages, first.begin, first.end) == (1, 0, second.begin)
    assert await journals.write_head(PARTS[0]) == second.end == writer.published[PARTS[0]].end
    assert await _shown(journals, PARTS[0]) == [{"key": "a"}, {"key": "b"}]


async def test_transaction_is_shown_at_its_commit_or_never(journals: JournalClient) -> None:
    """A file is published as a whole: what was rolled back is dropped, and the next transaction counts."""
    await _declare(journals, *PARTS)
    topic = await open_topic(journals, "topic/")
    mapping = topic.mapping("key")
    writer = MessageWriter(journals, transaction=True)

    for key in "abcd":
        writer.publish(mapping, {"key": key}, JSON)
    await writer.flush()
    hidden = [await _shown(journals, part) for part in PARTS]
    await writer.roll_back()
    for key in "efgh":
        writer.publish(mapping, {"key": key}, JSON)
    ranges = await writer.commit()
    shown = [await _shown(journals, part) for part in PARTS]

    assert hidden == [[], []]
    assert sorted(message["key"] for part in shown for message in part) == list("efgh")
    assert {each.journal: each.end for each in ranges} == {
        part: await journals.write_head(part) for part in PARTS
    }


async def test_append_whose_answer_was_lost_is_one_message_to_readers() -> None:
    """The network breaks between write and answer: the bytes are there twice, with one UUID."""
    journal = JournalInMemory()
    losses = 1

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        nonlocal losses
        response = await journal.take(requests, context)
        if losses:
            losses -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")
        return response

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        writer = MessageWriter(client)
        writer.publish(MappedJournal("abcd", NDJSON), {"n": 1}, JSON)
        await writer.flush()

    first, second, rest = journal.content.split(b"\n")
    assert first == second
    assert rest == b""


async def test_append_that_was_lost_before_its_journal_was_divided_is_not_repeated_in_a_part() -> (
    None
):
    """Its first copy may be in the journal: the same message in a part would be another one to readers."""
    journal = JournalInMemory()
    answers = 0

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        nonlocal answers
        answers += 1
        if answers == 2:
            refusal = refused(pb.REGISTER_MISMATCH)
            refusal.registers.CopyFrom(DIVIDED)
            return refusal
        response = await journal.take(requests, context)
        if answers == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")
        return response

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        writer = MessageWriter(client, transaction=True)
        writer.publish(MappedJournal("abcd", NDJSON), {"n": 1}, JSON)
        with pytest.raises(AppendOutcomeUnknownError, match="then the journal was divided"):
            await writer.flush()
        await writer.roll_back()

    message, rollback, rest = journal.content.split(b"\n")
    assert b'"n":1' in message
    assert b'"n"' not in rollback, "readers drop what may have come"
    assert rest == b""


async def test_message_whose_part_was_deleted_is_refused(journals: JournalClient) -> None:
    """A journal was divided, and only one of its parts is there: the keys of the other one are told, those of this one
    are published.
    """
    part = "topic/part-000-0000"
    await _declare(journals, "topic/part-000")
    owned = dict(range_labels(KeyRange(0, GROUPS // 2)))
    await _declare(journals, part, **{SPLIT_OF: "topic/part-000", **owned})
    await journals.append("topic/part-000", b'{"key":"before"}\n', union_registers=DIVIDED)
    mapping = modulo_mapping(field_key("key"), lambda: [MappedJournal("topic/part-000", NDJSON)])
    taken = next(key for key in map(str, range(99)) if group_of(key.encode()) < GROUPS // 2)
    lost = next(key for key in map(str, range(99)) if group_of(key.encode()) >= GROUPS // 2)
    writer = MessageWriter(journals)

    writer.publish(mapping, {"key": taken}, JSON)
    await writer.flush()
    writer.publish(mapping, {"key": lost}, JSON)
    with pytest.raises(PartMissingError, match=r"topic/part-000 .*the part .* was deleted"):
        await writer.flush()

    assert await _shown(journals, part) == [{"key": taken}]


async def test_topic_maps_as_an_application_does(journals: JournalClient) -> None:
    """A key must go where the application's own publisher sends it, or its shard counts it twice."""
    await _declare(journals, *PARTS)
    topic = await open_topic(journals, "topic/")
    ours = modulo_mapping(lambda message: message["key"].encode(), lambda: topic.partitions)

    assert [part.journal for part in topic.partitions] == list(PARTS)
    for key in ("a", "b", "é", ""):
        assert topic.mapping("key")({"key": key}) == ours({"key": key})
    assert topic.mapping(rule="random")({}).journal in PARTS
    with pytest.raises(
        ValidationError, match=r"key: 2 journals match, topic/part-000 is the first"
    ):
        topic.mapping()
    with pytest.raises(ValidationError, match="a random mapping looks at no key"):
        topic.mapping("key", "random")


async def test_topic_refuses_what_cannot_be_published_to(journals: JournalClient) -> None:
    """A wrong name or selector must not become messages that no reader decodes."""
    await _declare(journals, PARTS[0])
    await _declare(journals, "topic/table", content_type=CSV)
    await _declare(journals, "logs/a", content_type="application/x-gazette-recoverylog")

    with pytest.raises(JournalNotFoundError):
        await open_topic(journals, "topic/part-009")
    with pytest.raises(JournalNotFoundError, match="no journal's name begins so"):
        await open_topic(journals, "topics/")
    with pytest.raises(NoPartitionsError):
        await open_topic(journals, selector="app=none")
    with pytest.raises(
        ValidationError, match=r"topic/part-000 has content-type=application/x-ndjson"
    ):
        await open_topic(journals, "topic/")
    with pytest.raises(ContentTypeError, match="logs/a has content type"):
        await open_topic(journals, "logs/a")
    with pytest.raises(ValidationError, match="expected either a journal or prefix, or a selector"):
        await open_topic(journals)


async def test_message_without_the_key_is_refused() -> None:
    """A key that is missing, null or a fraction has no journal: none is guessed."""
    key = field_key("key")

    assert [key({"key": value}) for value in ("é", 7, True, b"x")] == [
        "é".encode(),
        b"7",
        b"true",
        b"x",
    ]
    assert field_key("f1")(["", "a", "b"]) == b"a"
    keyless: list[object] = [{}, {"key": None}, {"key": 1.5}, {"key": []}, ["", "a"], 3]
    for message in keyless:
        with pytest.raises(ValidationError, match="key"):
            key(message)
    with pytest.raises(ValidationError, match="no field 'f2'"):
        field_key("f2")(["", "a"])


async def test_message_that_cannot_be_encoded_leaves_the_buffer(journals: JournalClient) -> None:
    """One bad message among good ones: the good ones are published, and counted."""
    await _declare(journals, PARTS[0])
    target = MappedJournal(PARTS[0], NDJSON)
    writer = MessageWriter(journals)

    writer.publish(target, {"n": 1}, JSON)
    with pytest.raises(PublishMessageError):
        writer.publish(target, {"n": object()}, JSON)
    [published] = await writer.flush()

    assert published.messages == 1
    assert await _shown(journals, PARTS[0]) == [{"n": 1}]
