"""Open transactions of a journal: which there are behind any message."""

from __future__ import annotations

from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.open_transactions import OpenTransactions
from broadsheet.journals.message.uuid import Flags, clock_at, unix_seconds_of

PENDING, ACK, ALONE = Flags.CONTINUE_TXN, Flags.ACK_TXN, Flags.OUTSIDE_TXN


def _open_after(*messages: tuple[int, int, int], cut: int = 0) -> dict[int, int]:
    """Return what is open behind messages (producer, clock, flags) of 10 bytes each, read in two batches."""
    found = OpenTransactions()
    for begin, stop in ((0, cut), (cut, len(messages))):
        part = messages[begin:stop]
        found.read(
            MessageBatch(
                "test/journal",
                [10 * place for place in range(begin, stop)],
                [10 * place + 10 for place in range(begin, stop)],
                [producer for producer, _, _ in part],
                [clock for _, clock, _ in part],
                [flags for _, _, flags in part],
                [b""] * len(part),
                JsonType(),
            )
        )
    return {each.producer: each.begin for each in found.since(unix_seconds_of(0))}


def test_transaction_is_open_from_its_first_message_to_its_acknowledgement() -> None:
    """Wherever the reads are cut."""
    written = (
        (1, 1, PENDING),
        (2, 1, PENDING),
        (1, 2, PENDING),
        (1, 3, ACK),
        (2, 2, PENDING),
        (1, 4, PENDING),
    )
    for cut in range(len(written)):
        assert _open_after(*written, cut=cut) == {2: 10, 1: 50}
        assert _open_after(*written, (2, 3, ACK), (1, 5, ACK), cut=cut) == {}


def test_rollback_ends_a_transaction_and_what_comes_again_begins_none() -> None:
    """An acknowledgement before the first message rolls back; a copy of what was acknowledged is old."""
    assert _open_after((1, 5, PENDING), (1, 4, ACK)) == {}
    assert _open_after((1, 5, PENDING), (1, 6, ACK), (1, 5, PENDING), (1, 6, ACK), cut=2) == {}
    assert _open_after((1, 5, PENDING), (1, 6, ACK), (1, 5, PENDING), cut=2) == {}


def test_copies_of_what_is_settled_are_told_from_what_is_new() -> None:
    """A publisher's successor repeats messages with their acknowledgement; anything else is new."""
    found = OpenTransactions()
    found.read(_batch((1, 1 << 60, PENDING), (1, (1 << 60) + 1, ACK), (2, 7, ALONE)))

    repeated = ((1, 1 << 60, PENDING), (1, (1 << 60) + 1, ACK), (2, 7, ALONE), (3, 1, ACK))
    behind = found.behind()
    assert behind.read(_batch(*repeated)) is None
    assert not behind.open
    for new in (
        ((1, (1 << 60) + 2, PENDING), (1, (1 << 60) + 3, ACK)),
        ((4, 1, PENDING), (4, 2, ALONE)),
        ((2, 8, ALONE),),
        ((0, 0, ALONE),),
    ):
        shown = found.behind().read(_batch(*repeated, *new))
        assert shown == (new[0][0], 10 * len(repeated))


def test_transaction_behind_a_seal_that_is_rolled_back_shows_nothing_and_one_that_is_open_may() -> (
    None
):
    """A primary that slept may leave the former; for the latter an operator decides."""
    found = OpenTransactions()
    found.read(_batch((1, 5, PENDING), (1, 6, ACK)))
    behind = found.behind()

    assert behind.read(_batch((1, 7, PENDING), (1, 8, PENDING))) is None
    assert behind.open == {1: (0, 7)}
    assert behind.read(_batch((1, 6, ACK))) is None
    assert not behind.open
    assert behind.read(_batch((1, 9, PENDING), (1, 10, ACK))) == (1, 0)
    assert not found.behind().open, "each look begins at the seal"


def _batch(*messages: tuple[int, int, int]) -> MessageBatch:
    return MessageBatch(
        "test/journal",
        [10 * place for place in range(len(messages))],
        [10 * place + 10 for place in range(len(messages))],
        [producer for producer, _, _ in messages],
        [clock for _, clock, _ in messages],
        [flags for _, _, flags in messages],
        [b""] * len(messages),
        JsonType(),
    )


def test_transactions_of_long_ago_are_left_out_when_asked_for_later_ones() -> None:
    """Readers forget those, too."""
    found = OpenTransactions()
    clocks = [clock_at(seconds * 10**9) for seconds in (1_000_000, 2_000_000)]
    found.read(
        MessageBatch(
            "test/journal", [0, 10], [10, 20], [1, 2], clocks, [PENDING] * 2, [b""] * 2, JsonType()
        )
    )

    assert [each.producer for each in found.since(0.0)] == [1, 2]
    assert [each.producer for each in found.since(1_500_000.0)] == [2]


def test_messages_that_are_committed_by_themselves_open_nothing() -> None:
    """Nor do messages without a UUID."""
    assert _open_after((1, 1, ALONE), (0, 0, ALONE), (0, 0, PENDING)) == {}
    assert _open_after((1, 1, PENDING), (1, 2, ALONE)) == {}
