"""How a batch is taken apart around messages that are left out, or are consumed with care."""

from __future__ import annotations

from broadsheet.consumer.shard.dead_letters import DeadLetters, publish_dead_letter
from broadsheet.consumer.shard.supervision import MessagePosition
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock
from broadsheet.runtime.clock import SystemClock
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.message_batches import FRAME_BYTES, WrittenJournal, single

JOURNAL = "in/a"


def _batch(count: int = 6) -> MessageBatch:
    return WrittenJournal(JOURNAL).batch(*(single(10 + index) for index in range(count)))


def _place(first: int, count: int = 1, journal: str = JOURNAL) -> MessagePosition:
    return MessagePosition(
        journal, first * FRAME_BYTES, (first + count) * FRAME_BYTES, messages=count
    )


def _parts(letters: DeadLetters, batch: MessageBatch) -> list[tuple[list[int], str | None]]:
    return [
        ([begin // FRAME_BYTES for begin in part.begins.tolist()], cause)
        for part, cause in letters.parts(batch)
    ]


def test_poison_message_stands_alone_with_its_cause() -> None:
    """All around it is delivered as before, in order."""
    letters = DeadLetters()
    letters.leave_out(_place(2), "bad")
    letters.leave_out(_place(5), "worse")

    assert _parts(letters, _batch()) == [
        ([0, 1], None),
        ([2], "bad"),
        ([3, 4], None),
        ([5], "worse"),
    ]


def test_suspicious_range_is_consumed_message_by_message() -> None:
    """Only so can it be told which of them is to blame."""
    letters = DeadLetters(suspect=_place(1, count=3))

    assert _parts(letters, _batch()) == [
        ([0], None),
        ([1], None),
        ([2], None),
        ([3], None),
        ([4, 5], None),
    ]


def test_batch_without_any_of_them_is_delivered_whole() -> None:
    """What was left out long ago, or in another journal, must not slow down all that comes after it."""
    letters = DeadLetters(suspect=_place(0, count=8, journal="in/b"))
    letters.leave_out(_place(2, journal="in/b"), "bad")
    letters.leave_out(_place(7), "bad")
    batch = _batch()

    ((part, cause),) = letters.parts(batch)

    assert part is batch
    assert cause is None


def test_letter_of_an_error_that_no_message_can_hold_is_published() -> None:
    """An application's error that quotes half a surrogate pair: the letter must not stop the shard at its message."""
    spec = ShardSpec(id="shard-1")
    spec.labels.labels.add(name=DEAD_LETTER_JOURNAL, value="dead/letters")
    publisher = Publisher(MessageClock(), 7)

    publish_dead_letter(publisher, spec, _batch(1), "cannot read \ud83d", SystemClock())

    [append] = publisher.take_appends()
    [letter] = [JsonType().decode(line) for line in append.content]
    assert letter["cause"] == "cannot read \\ud83d"
