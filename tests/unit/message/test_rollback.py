"""The acknowledgement that undoes what a dead producer left: which clock it carries, and what readers make of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.message.batch import MessageBatch, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.rollback import (
    Rollback,
    brought_forward,
    last_acknowledgement,
    unaccounted,
)
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import Flags, MessageClock, parse_uuid

PRODUCER = 0x0100000000AB
OTHER = 0x0100000000CD


class RawType:
    """Payloads are 16 bytes of UUID, then a text."""

    content_type = PROTOBUF_FIXED

    def decode(self, payload: bytes) -> Any:
        """Return a list of UUID and text."""
        return [payload[:16], payload[16:]]

    def encode(self, message: Any) -> bytes:
        """Join the two."""
        return bytes(message[0] + message[1])

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the first part."""
        return payload[:16]

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Set the first part."""
        message[0] = uuid

    def new_acknowledgement(self, journal: str) -> Any:
        """Return an empty message."""
        del journal
        return [b"", b"an acknowledgement"]


class HiddenType(RawType):
    """The same, with every bit turned around: no UUID shows in a frame."""

    def encode(self, message: Any) -> bytes:
        """Turn the bits around."""
        return bytes(255 - byte for byte in super().encode(message))

    def uuid_of(self, payload: bytes) -> bytes:
        """Turn them back."""
        return bytes(255 - byte for byte in payload[:16])


class Read:
    """A reader of one journal."""

    def __init__(self, journal: str, message_type: MessageType) -> None:
        self._journal = journal
        self._type = message_type
        self._sequencer = Sequencer({})
        self._end = 0

    def take(self, *frames: bytes) -> tuple[list[int], set[SequenceOutcome]]:
        """Read on, whole frames a time; return the clocks of what is committed (acknowledgements too), and outcomes."""
        committed: list[int] = []
        outcomes: set[SequenceOutcome] = set()
        for frame in frames:
            batch, index = self._batch(frame), 0
            while index < len(batch):
                queued = self._sequencer.queue(batch, index)
                index = queued.next_index
                outcomes |= set(queued.outcomes)
                while self._sequencer.emitting:
                    run = self._sequencer.peek(100)
                    assert run is not None
                    committed.extend(run.clocks)
                    self._sequencer.consume(len(run))
        return committed, outcomes

    def pending(self) -> list[int]:
        """Return the producers that have messages pending."""
        sources = self._sequencer.take_checkpoint()
        return [
            int.from_bytes(entry.id, "big")
            for source in sources.values()
            for entry in source.producers
            if entry.state.begin >= 0
        ]

    def _batch(self, frame: bytes) -> MessageBatch:
        unframer = framing_for(self._type.content_type, journal=self._journal).unframer(
            journal=self._journal, offset=self._end
        )
        frames = unframer.feed(frame)
        self._end += len(frame)
        parsed = [parse_uuid(self._type.uuid_of(payload)) for payload in frames.payloads]
        producers, clocks, flags = map(list, zip(*parsed, strict=True))
        return MessageBatch(
            self._journal,
            list(frames.begins),
            list(frames.ends),
            producers,
            clocks,
            flags,
            list(frames.payloads),
            self._type,
        )


TYPES = pytest.mark.parametrize(
    ("content_type", "message_type"),
    [(NDJSON, JsonType()), (PROTOBUF_FIXED, RawType())],
    ids=["text", "bytes"],
)


def new_message(message_type: MessageType) -> Any:
    """Return a message to publish."""
    return message_type.new_acknowledgement("")


def publisher_at(
    clock_nanoseconds: int = 1_700_000_000 * 10**9, *, carried_bytes_max: int = 0
) -> Publisher:
    """Return a publisher whose clock stands at a time."""
    clock = MessageClock()
    clock.update_nanoseconds(clock_nanoseconds)
    return Publisher(clock, PRODUCER, carried_bytes_max=carried_bytes_max)


@TYPES
def test_rollback_of_a_producer_that_never_committed(
    content_type: str, message_type: MessageType
) -> None:
    """Plan: two messages, then the rollback that was made with the first. Why: a reader must have nothing pending, and
    take it for an ordinary rollback.
    """
    publisher, reader = publisher_at(), Read("a/one", message_type)
    target = MappedJournal("a/one", content_type)
    for _ in range(2):
        publisher.publish_uncommitted(target, new_message(message_type), message_type)
    (rollback,) = publisher.take_rollbacks()
    (append,) = publisher.take_appends()

    reader.take(*append.content)
    assert reader.pending() == [PRODUCER]
    committed, outcomes = reader.take(rollback.content)

    assert committed == []
    assert outcomes == {SequenceOutcome.ACK_ROLLBACK}
    assert reader.pending() == []
    assert publisher.take_rollbacks() == [], "asked for once a journal, not once a transaction"


@TYPES
def test_rollback_brought_forward_keeps_what_was_committed(
    content_type: str, message_type: MessageType
) -> None:
    """Plan: journal one is committed into, then only journal two, then one again, uncommitted; the checkpoint names two
    alone. Why: the rollback in one must come after what it committed, and before what it did not.
    """
    publisher, reader = publisher_at(), Read("a/one", message_type)
    one, two = (MappedJournal(name, content_type) for name in ("a/one", "a/two"))
    publisher.publish_uncommitted(one, new_message(message_type), message_type)
    (first,) = publisher.take_appends()
    (acknowledgement,) = publisher.build_ack_intents()
    publisher.publish_uncommitted(two, new_message(message_type), message_type)
    intents = {intent.journal: intent.content for intent in publisher.build_ack_intents()}
    publisher.take_appends()
    publisher.publish_uncommitted(one, new_message(message_type), message_type)
    (orphan,) = publisher.take_appends()
    rollbacks = publisher.take_rollbacks()
    committed, _ = reader.take(*first.content, acknowledgement.content)
    assert len(committed) == 2
    reader.take(*orphan.content)
    assert reader.pending() == [PRODUCER]

    forward = brought_forward(rollbacks, intents)
    committed, outcomes = reader.take(forward[0].content)

    assert [each.journal for each in forward] == ["a/one", "a/two"]
    assert forward[0].clock == forward[1].clock == forward[1].clock_in(intents["a/two"])
    assert committed == [forward[0].clock], "nothing but the acknowledgement itself"
    assert SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS not in outcomes
    assert reader.pending() == []
    again, outcomes = reader.take(forward[0].content)
    assert (again, outcomes) == ([], {SequenceOutcome.ACK_ROLLBACK}), (
        "a second time changes nothing"
    )


@TYPES
def test_intent_that_carries_messages_may_be_repeated_and_undone_behind(
    content_type: str, message_type: MessageType
) -> None:
    """Plan: a journal's second transaction is carried by its intent. Successors append that, and behind it the rollback
    that they bring forward, again and again. Why: the message is to be seen once, and nothing may stay pending.
    """
    publisher, reader = publisher_at(carried_bytes_max=1000), Read("a/one", message_type)
    target = MappedJournal("a/one", content_type)
    publisher.publish_uncommitted(target, new_message(message_type), message_type)
    (first,) = publisher.take_appends()
    (rollback,) = publisher.take_rollbacks()
    (acknowledgement,) = publisher.build_ack_intents()
    reader.take(*first.content, acknowledgement.content)
    publisher.publish_uncommitted(target, new_message(message_type), message_type)
    assert publisher.take_appends() == []
    (intent,) = publisher.build_ack_intents()
    intents = {intent.journal: intent.content}

    (forward,) = brought_forward([rollback], intents)
    committed = [
        clock
        for content in (intent.content, forward.content) * 3
        for clock in reader.take(content)[0]
    ]

    assert forward.content == intent.acknowledgement
    assert len(committed) == len(set(committed)) == 2, "the message and its acknowledgement"
    assert reader.pending() == []


class LongerType(RawType):
    """The same, but its acknowledgements are longer."""

    def new_acknowledgement(self, journal: str) -> Any:
        """Return an empty message."""
        del journal
        return [b"", b"an acknowledgement of another type"]


@pytest.mark.parametrize(
    ("types", "carried"),
    [
        pytest.param((RawType(), RawType()), True, id="one type"),
        pytest.param((HiddenType(), HiddenType()), False, id="hidden"),
        pytest.param((RawType(), LongerType()), False, id="another type"),
    ],
)
def test_intents_carry_messages_only_if_a_rollback_can_read_their_acknowledgement(
    types: tuple[MessageType, MessageType], carried: bool
) -> None:
    """A successor that cannot tell its clock rolls back to one before the messages: they would be delivered again
    whenever the intent is repeated.
    """
    publisher = publisher_at(carried_bytes_max=1000)
    target = MappedJournal("a/one", PROTOBUF_FIXED)
    publisher.publish_uncommitted(target, new_message(types[0]), types[0])
    assert publisher.take_appends()
    publisher.take_rollbacks()
    publisher.build_ack_intents()

    publisher.publish_uncommitted(target, new_message(types[1]), types[1])
    assert publisher.take_appends() == [], "it is small"
    (intent,) = publisher.build_ack_intents()
    left = publisher.take_appends()

    assert (intent.content != intent.acknowledgement) is carried
    assert [append.journal for append in left] == ([] if carried else ["a/one"])


def test_rollback_of_a_journal_first_touched_after_the_checkpoint_stays_as_it_was() -> None:
    """Plan: the checkpoint is older than the journal's first message. Why: an earlier clock than that of the first
    message, but one would tell readers that the producer lost progress.
    """
    publisher = publisher_at()
    publisher.publish_uncommitted(MappedJournal("a/one", NDJSON), {}, JsonType())
    intents = {intent.journal: intent.content for intent in publisher.build_ack_intents()}
    publisher.publish_uncommitted(MappedJournal("a/two", NDJSON), {}, JsonType())
    _, second = publisher.take_rollbacks()

    first_forward, second_forward = brought_forward([_, second], intents)

    assert second_forward == second
    assert first_forward.clock < second.clock


@TYPES
def test_rollback_of_a_successor_undoes_what_that_publishes(
    content_type: str, message_type: MessageType
) -> None:
    """Plan: made of a former producer's, before the successor publishes. Why: then its first append need not wait."""
    former, reader = publisher_at(), Read("a/one", message_type)
    target = MappedJournal("a/one", content_type)
    former.publish_uncommitted(target, new_message(message_type), message_type)
    (left,) = former.take_rollbacks()
    clock = MessageClock()
    clock.update_nanoseconds(1_800_000_000 * 10**9)
    foreseen = left.of_successor(OTHER, clock.value)
    assert foreseen is not None
    assert (foreseen.journal, foreseen.producer, foreseen.clock) == ("a/one", OTHER, clock.value)

    successor = Publisher(clock, OTHER)
    successor.publish_uncommitted(target, new_message(message_type), message_type)
    (append,) = successor.take_appends()
    reader.take(*append.content)
    assert reader.pending() == [OTHER]
    committed, _ = reader.take(foreseen.content)

    assert committed == []
    assert reader.pending() == []


def test_rollback_of_a_successor_is_not_made_where_the_uuid_is_hidden() -> None:
    """Plan: an encoding in which it does not show. Why: the frame would be the former producer's still."""
    publisher = publisher_at()
    publisher.publish_uncommitted(
        MappedJournal("a/one", PROTOBUF_FIXED), new_message(HiddenType()), HiddenType()
    )
    (rollback,) = publisher.take_rollbacks()

    assert rollback.of_successor(OTHER, 1 << 60) is None


def test_intents_of_another_producer_bring_nothing_forward() -> None:
    """Plan: another producer's acknowledgement in the same journal. Why: its clock says nothing of ours."""
    ours, theirs = publisher_at(), Publisher(MessageClock(), OTHER)
    target = MappedJournal("a/one", NDJSON)
    for publisher in (ours, theirs):
        publisher.publish_uncommitted(target, {}, JsonType())
    intents = {intent.journal: intent.content for intent in theirs.build_ack_intents()}
    rollbacks = ours.take_rollbacks()

    assert brought_forward(rollbacks, intents) == rollbacks


@pytest.mark.parametrize(
    "intent",
    [b"", b"x" * 500, b'{"_meta":{"uuid":"zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz"}}\n'],
    ids=["empty", "longer", "no digits"],
)
def test_intent_that_is_no_such_acknowledgement_brings_nothing_forward(intent: bytes) -> None:
    """Plan: bytes another program may have written. Why: what cannot be read must not stop a take-over."""
    publisher = publisher_at()
    publisher.publish_uncommitted(MappedJournal("a/one", NDJSON), {}, JsonType())
    rollbacks = publisher.take_rollbacks()

    assert brought_forward(rollbacks, {"a/one": intent}) == rollbacks


def test_hidden_uuid_keeps_the_first_clock_and_still_rolls_back() -> None:
    """Plan: an encoding in which no UUID shows. Why: then readers hear of lost progress, but nothing stays pending."""
    publisher, reader = publisher_at(), Read("a/one", HiddenType())
    target = MappedJournal("a/one", PROTOBUF_FIXED)
    publisher.publish_uncommitted(target, [b"", b"m"], HiddenType())
    (acknowledgement,) = publisher.build_ack_intents()
    publisher.publish_uncommitted(target, [b"", b"m"], HiddenType())
    (append,) = publisher.take_appends()
    reader.take(append.content[0], acknowledgement.content, append.content[1])

    (rollback,) = brought_forward(publisher.take_rollbacks(), {"a/one": acknowledgement.content})
    _, outcomes = reader.take(rollback.content)

    assert outcomes == {SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS}
    assert reader.pending() == []


def test_uuid_that_an_encoding_writes_twice_moves_in_both_places() -> None:
    """Plan: a message that repeats its UUID. Why: a frame with two different ones would be of no message."""
    rollback = Rollback(journal="a/one", producer=PRODUCER, clock=1600, content=b"")
    text = msgspec.json.encode({"id": _text(rollback), "_meta": {"uuid": _text(rollback)}})
    rollback = Rollback(journal="a/one", producer=PRODUCER, clock=1600, content=text)

    moved = rollback.at(3200)

    meta = msgspec.json.decode(moved.content)
    assert meta["id"] == meta["_meta"]["uuid"]
    assert parse_uuid(JsonType().uuid_of(moved.content)) == (PRODUCER, 3200, Flags.ACK_TXN)


@TYPES
def test_rollback_is_brought_forward_by_what_has_landed(
    content_type: str, message_type: MessageType
) -> None:
    """The checkpoint names none of ours: another implementation wrote it. Our producer committed twice, as its journal
    tells; its rollback of before its first message would make readers forget that.
    """
    publisher = publisher_at()
    reader = Read("out/a", message_type)
    frames: list[bytes] = []
    for _ in range(2):
        publisher.publish_uncommitted(
            MappedJournal("out/a", content_type), new_message(message_type), message_type
        )
        frames += publisher.take_appends()[0].content
        frames += [publisher.build_ack_intents()[0].content]
    (rollback,) = publisher.take_rollbacks()
    publisher.publish_uncommitted(
        MappedJournal("out/a", content_type), new_message(message_type), message_type
    )
    frames += publisher.take_appends()[0].content
    reader.take(*frames)
    theirs = {"out/a": rollback.of_successor(OTHER, rollback.clock + 16).content}  # type: ignore[union-attr]
    assert unaccounted([rollback], theirs) == [rollback]
    assert unaccounted([rollback], {"out/a": frames[-2]}) == []

    found = last_acknowledgement(b"".join(frames), PRODUCER)
    assert found is not None
    (forward,) = brought_forward([rollback], theirs, landed={(PRODUCER, "out/a"): found})

    assert reader.take(forward.content) == ([], {SequenceOutcome.ACK_ROLLBACK})
    assert reader.pending() == []
    assert last_acknowledgement(b"".join(frames), OTHER) is None


def _text(rollback: Rollback) -> str:
    digits = rollback.uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
