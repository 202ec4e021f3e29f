"""The publisher: what it stamps, in which order, and what it wants acknowledged."""

from __future__ import annotations

from typing import Any

import pytest

from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.content.protobuf import PROTOBUF_FIXED
from broadsheet.journals.errors import ContentTypeError, PublishMessageError
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import (
    CLOCK_UNITS_PER_MESSAGE,
    Flags,
    MessageClock,
    parse_uuid,
)

JSON_TYPE = JsonType()
ONE = MappedJournal("a/one", NDJSON)
TWO = MappedJournal("a/two", NDJSON)
PRODUCER = 0x0100000000AB


def stamps(content: list[bytes]) -> list[tuple[int, int, int]]:
    """Return (producer, ticks, flags) of framed JSON messages."""
    parsed = [parse_uuid(JSON_TYPE.uuid_of(frame)) for frame in content]
    return [
        (producer, clock // CLOCK_UNITS_PER_MESSAGE, flags) for producer, clock, flags in parsed
    ]


def test_publish_committed_is_outside_of_transactions() -> None:
    """Plan: two messages. Why: each commits by itself, in clock order, and asks for no acknowledgement."""
    publisher = Publisher(MessageClock(), PRODUCER)

    publisher.publish_committed(ONE, {"n": 1}, JSON_TYPE)
    publisher.publish_committed(lambda _: ONE, {"n": 2}, JSON_TYPE)

    [append] = publisher.take_appends()
    assert append.journal == "a/one"
    assert all(frame.endswith(b"}\n") for frame in append.content)
    assert stamps(append.content) == [
        (PRODUCER, 1, Flags.OUTSIDE_TXN),
        (PRODUCER, 2, Flags.OUTSIDE_TXN),
    ]
    assert publisher.build_ack_intents() == []
    assert publisher.take_appends() == []


def test_publish_uncommitted_is_acknowledged_once_a_journal_in_first_use_order() -> None:
    """Plan: three messages to two journals, twice. Why: intents are of one transaction."""
    publisher = Publisher(MessageClock(), PRODUCER)

    for mapped in (TWO, ONE, TWO):
        publisher.publish_uncommitted(mapped, {}, JSON_TYPE)
    appends = publisher.take_appends()
    intents = publisher.build_ack_intents()
    publisher.publish_uncommitted(ONE, {}, JSON_TYPE)
    later = publisher.build_ack_intents()

    assert [(append.journal, stamps(append.content)) for append in appends] == [
        ("a/two", [(PRODUCER, 1, Flags.CONTINUE_TXN), (PRODUCER, 3, Flags.CONTINUE_TXN)]),
        ("a/one", [(PRODUCER, 2, Flags.CONTINUE_TXN)]),
    ]
    assert [(intent.journal, stamps([intent.content])) for intent in intents] == [
        ("a/two", [(PRODUCER, 4, Flags.ACK_TXN)]),
        ("a/one", [(PRODUCER, 5, Flags.ACK_TXN)]),
    ]
    assert [(intent.journal, stamps([intent.content])) for intent in later] == [
        ("a/one", [(PRODUCER, 7, Flags.ACK_TXN)])
    ]


class Validated(dict[str, Any]):
    """A message that checks itself."""

    def validate(self) -> None:
        """Refuse a message without `n`."""
        if "n" not in self:
            raise ValueError("n is missing")


def test_publish_invalid_message_is_refused_before_mapping() -> None:
    """Plan: a mapping that must not run. Why: mappings may rely on what validation checks."""
    publisher = Publisher(MessageClock(), PRODUCER)

    def unreachable(_: Any) -> MappedJournal:
        pytest.fail("mapped an invalid message")

    with pytest.raises(ValueError, match="n is missing"):
        publisher.publish_uncommitted(unreachable, Validated(), JSON_TYPE)

    publisher.publish_uncommitted(ONE, Validated(n=1), JSON_TYPE)
    assert len(publisher.take_appends()) == 1


def test_publish_other_content_type_names_journal_and_both_types() -> None:
    """Plan: JSON to a protobuf journal. Why: readers of that journal could not frame it."""
    publisher = Publisher(MessageClock(), PRODUCER)

    with pytest.raises(ContentTypeError, match=r"a/one .*x-protobuf-fixed.*x-ndjson"):
        publisher.publish_committed(MappedJournal("a/one", PROTOBUF_FIXED), {}, JSON_TYPE)


def test_publish_unencodable_message_names_journal_and_leaves_nothing_behind() -> None:
    """Plan: a value JSON cannot hold. Why: a failed publish must neither be appended nor acknowledged."""
    publisher = Publisher(MessageClock(), PRODUCER)

    with pytest.raises(PublishMessageError, match=r"a/one cannot take .*x-ndjson.*object"):
        publisher.publish_uncommitted(ONE, {"x": object()}, JSON_TYPE)

    assert publisher.take_appends() == []
    assert publisher.build_ack_intents() == []


def test_committed_message_beside_uncommitted_ones_is_refused() -> None:
    """Readers take it for the end of the transaction's span, and discard what it holds."""
    publisher = Publisher(MessageClock(), PRODUCER)
    publisher.publish_uncommitted(ONE, {"n": 1}, JSON_TYPE)

    with pytest.raises(PublishMessageError, match="uncommitted messages of this transaction"):
        publisher.publish_committed(ONE, {"n": 2}, JSON_TYPE)

    publisher.build_ack_intents()
    publisher.publish_committed(ONE, {"n": 3}, JSON_TYPE)
    (append,) = publisher.take_appends()
    assert len(append.content) == 2


def carrying(bytes_max: int = 1000) -> Publisher:
    """Return a publisher that carries messages, and whose transactions have touched both journals."""
    publisher = Publisher(MessageClock(), PRODUCER, carried_bytes_max=bytes_max)
    for mapped in (ONE, TWO):
        publisher.publish_uncommitted(mapped, {}, JSON_TYPE)
    assert [append.journal for append in publisher.take_appends()] == ["a/one", "a/two"]
    assert [rollback.journal for rollback in publisher.take_rollbacks()] == ["a/one", "a/two"]
    for intent in publisher.build_ack_intents():
        assert intent.content == intent.acknowledgement, (
            "first messages tell whether there is such a journal"
        )
    return publisher


def test_intents_carry_the_messages_of_small_transactions() -> None:
    """Plan: messages to two journals in two deliveries. Why: nothing is to be appended before the commit, and all of it
    afterwards, in the order of its clocks; the next transaction begins with nothing.
    """
    publisher = carrying()

    for mapped in (ONE, TWO, ONE):
        publisher.publish_uncommitted(mapped, {}, JSON_TYPE)
        assert publisher.take_appends() == []
    one, two = publisher.build_ack_intents()

    assert stamps(one.content.splitlines(keepends=True)) == [
        (PRODUCER, 5, Flags.CONTINUE_TXN),
        (PRODUCER, 7, Flags.CONTINUE_TXN),
        (PRODUCER, 8, Flags.ACK_TXN),
    ]
    assert stamps(two.content.splitlines(keepends=True)) == [
        (PRODUCER, 6, Flags.CONTINUE_TXN),
        (PRODUCER, 9, Flags.ACK_TXN),
    ]
    assert one.content.endswith(one.acknowledgement)
    assert stamps([one.acknowledgement]) == [(PRODUCER, 8, Flags.ACK_TXN)]
    assert publisher.take_appends() == []
    assert publisher.build_ack_intents() == []


def test_transaction_that_grows_large_carries_nothing_any_more() -> None:
    """Plan: 600 bytes to one journal, 600 to the other, then a few; then a small transaction. Why: the bound is of all
    journals together, and what was appended must not be passed by what is carried.
    """
    publisher = carrying()

    publisher.publish_uncommitted(ONE, {"text": "x" * 500}, JSON_TYPE)
    assert publisher.take_appends() == []
    publisher.publish_uncommitted(TWO, {"text": "x" * 500}, JSON_TYPE)
    assert [append.journal for append in publisher.take_appends()] == ["a/one", "a/two"]
    publisher.publish_uncommitted(ONE, {}, JSON_TYPE)
    assert [append.journal for append in publisher.take_appends()] == ["a/one"]
    for intent in publisher.build_ack_intents():
        assert intent.content == intent.acknowledgement

    publisher.publish_uncommitted(ONE, {}, JSON_TYPE)
    assert publisher.take_appends() == []
    (intent,) = publisher.build_ack_intents()
    assert len(intent.content) > len(intent.acknowledgement)


def test_messages_behind_committed_ones_are_not_carried() -> None:
    """Plan: one message that is visible at once, then one of the transaction. Why: the first may not wait for a commit,
    and the second must stay behind it.
    """
    publisher = carrying()

    publisher.publish_committed(ONE, {}, JSON_TYPE)
    publisher.publish_uncommitted(ONE, {}, JSON_TYPE)
    publisher.publish_uncommitted(TWO, {}, JSON_TYPE)

    (append,) = publisher.take_appends()
    assert stamps(append.content) == [
        (PRODUCER, 5, Flags.OUTSIDE_TXN),
        (PRODUCER, 6, Flags.CONTINUE_TXN),
    ]
    one, two = publisher.build_ack_intents()
    assert one.content == one.acknowledgement
    assert stamps(two.content.splitlines(keepends=True)) == [
        (PRODUCER, 7, Flags.CONTINUE_TXN),
        (PRODUCER, 9, Flags.ACK_TXN),
    ]


def test_journal_without_a_proper_name_is_refused() -> None:
    """The application learns it where it publishes, not from a failing append."""
    publisher = Publisher(MessageClock(), PRODUCER)

    with pytest.raises(PublishMessageError, match="not a name"):
        publisher.publish_uncommitted(MappedJournal("not a name", NDJSON), {}, JSON_TYPE)

    assert publisher.take_appends() == []
