"""What a transaction hands to the application, and where it is cut: each situation, event by event."""

from __future__ import annotations

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import InputDemand
from broadsheet.consumer.shard.transaction_machine import DeliveryLimits
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.message_batches import WrittenJournal, ack, cont, single
from tests.support.transaction_stage import Stage, committed_one, kinds


def test_acknowledgement_is_counted_but_not_delivered() -> None:
    """Applications see their own messages only; the offset moves past the acknowledgement."""
    journal = WrittenJournal()
    stage = Stage()
    stage.on(tx.BatchRead(journal.batch(cont(10), ack(11))))
    stage.consume(1)
    stage.on(tx.InputIdle())

    checkpoint = stage.close()

    assert checkpoint.sources["in/a"].read_through == 20
    _, recorded = stage.on(tx.CommitResolved())
    assert isinstance(recorded, tx.RecordTxn)
    assert (recorded.messages, recorded.message_bytes) == (2, 20)


def test_acknowledgement_of_nothing_makes_a_transaction_without_delivery() -> None:
    """Its offset must become visible, or a reader that waits for it would wait for ever."""
    journal = WrittenJournal()
    stage = Stage()

    assert kinds(stage.on(tx.BatchRead(journal.batch(ack(10))))) == [tx.BeginTxn]
    stage.on(tx.TxnBegan())

    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    assert stage.close().sources["in/a"].read_through == 10


def test_duplicates_while_idle_publish_progress() -> None:
    """Messages that were seen before move the visible offset, though no transaction will tell of them."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)
    stage.on(tx.CommitResolved())
    stage.on(tx.AckResolved("out/a", 1))

    instructions = stage.on(tx.BatchRead(journal.batch(single(10))))

    assert instructions == (tx.PublishProgress({"in/a": 20}, {}),)


def test_duplicates_while_the_prior_commits_extend_what_it_reports() -> None:
    """Its completion then tells the offset with the duplicate, and that its checkpoint does not hold it."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)

    assert stage.on(tx.BatchRead(journal.batch(single(10)))) == ()
    stage.on(tx.CommitResolved())
    published, _ = stage.on(tx.AckResolved("out/a", 1))

    assert published == tx.PublishProgress({"in/a": 20}, {"out/a": 1}, {"in/a": 10})


def test_duplicates_of_a_fresh_shard_extend_an_empty_checkpoint() -> None:
    """Trap: the very first checkpoint has no sources at all, and must take the duplicate's offset anyway."""
    journal = WrittenJournal()
    recovered = Checkpoint(ack_intents={"out/a": b"A"})
    stage = Stage(recovered=recovered)
    stage.on(tx.BatchRead(journal.batch(cont(10), cont(10))))

    published, *_ = stage.on(tx.AckResolved("out/a", 1))

    assert published == tx.PublishProgress({"in/a": 20}, {"out/a": 1}, {})


def test_max_elapsing_within_a_sequence_splits_it() -> None:
    """The offset stays before the acknowledgement and the producer resumes at the first unconsumed message."""
    journal = WrittenJournal()
    stage = Stage(max_seconds=10, delivery=DeliveryLimits(messages_max=1))
    stage.on(tx.BatchRead(journal.batch(cont(10), cont(11), ack(12))))
    stage.on(tx.TxnBegan())

    closing = stage.on(tx.BatchDelivered(1), later=10)
    assert kinds(closing) == [tx.Finalize]
    checkpoint = stage.close()
    source = checkpoint.sources["in/a"]
    assert source.read_through == 20
    assert (source.producers[0].state.last_ack, source.producers[0].state.begin) == (10, 10)

    stage.on(tx.CommitResolved())
    (delivered,) = stage.on(tx.TxnBegan())
    assert isinstance(delivered, tx.Deliver)
    assert list(delivered.batch.clocks) == [11]
    stage.on(tx.BatchDelivered(1))
    stage.on(tx.InputIdle())
    assert stage.close().sources["in/a"].read_through == 30


def test_application_deferring_splits_a_sequence() -> None:
    """What it defers is the first of the next transaction; a deferring transaction takes no more input."""
    journal = WrittenJournal()
    stage = Stage()
    stage.on(tx.BatchRead(journal.batch(cont(10), cont(11), ack(12))))

    assert kinds(stage.consume(1)) == [tx.Finalize]
    stage.close()

    (delivered,) = stage.on(tx.TxnBegan())
    assert isinstance(delivered, tx.Deliver)
    assert delivered.first
    assert list(delivered.batch.clocks) == [11]


def test_deferring_waits_for_the_prior_transaction() -> None:
    """A deferral closes the transaction, but not out of turn."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)
    stage.on(tx.BatchRead(journal.batch(single(20), single(21))))

    assert stage.consume(1) == ()
    assert stage.takes() is InputDemand.NOTHING
    stage.on(tx.CommitResolved())
    assert kinds(stage.on(tx.AckResolved("out/a", 1)))[-1] is tx.Finalize


def test_span_beyond_memory_is_replayed() -> None:
    """What the ring dropped is read once more, and delivered in order with what it kept."""
    journal = WrittenJournal()
    stage = Stage(ring_messages=1)
    (replay,) = stage.on(tx.BatchRead(journal.batch(cont(10), cont(11), ack(12))))
    assert replay == tx.StartReplay("in/a", 0, 10)
    assert stage.takes() is InputDemand.REPLAY

    assert kinds(stage.on(tx.ReplayRead(journal.read(0, 10)))) == [tx.BeginTxn]
    (first,) = stage.on(tx.TxnBegan())
    assert isinstance(first, tx.Deliver)
    assert list(first.batch.clocks) == [10]
    stage.on(tx.BatchDelivered(1))
    assert stage.takes() is InputDemand.REPLAY
    (second,) = stage.on(tx.ReplayEnded())

    assert isinstance(second, tx.Deliver)
    assert list(second.batch.clocks) == [11]


def test_replay_of_other_messages_fails() -> None:
    """A journal that answers with another range than asked for must not be believed."""
    journal = WrittenJournal()
    stage = Stage(ring_messages=1)
    stage.on(tx.BatchRead(journal.batch(cont(10), cont(11), ack(12))))

    (failure,) = stage.on(tx.ReplayRead(journal.read(20, 30)))

    assert isinstance(failure, tx.Fail)


def test_deliveries_are_bounded_in_messages_and_bytes() -> None:
    """The timer and the commit are noticed between deliveries, so none may be large."""
    journal = WrittenJournal()
    stage = Stage(delivery=DeliveryLimits(messages_max=3, bytes_max=25))
    messages = [single(10 + n, payload=b"x" * 10) for n in range(4)]
    stage.on(tx.BatchRead(journal.batch(*messages)))

    (first,) = stage.on(tx.TxnBegan())
    assert isinstance(first, tx.Deliver)
    (second,) = stage.on(tx.BatchDelivered(2))

    assert isinstance(second, tx.Deliver)
    assert (len(first.batch), len(second.batch)) == (2, 2)


def test_delivery_of_one_huge_message_is_made() -> None:
    """A bound must not stop a message that alone exceeds it."""
    journal = WrittenJournal()
    stage = Stage(delivery=DeliveryLimits(bytes_max=5))
    stage.on(tx.BatchRead(journal.batch(single(10, payload=b"x" * 10))))

    (delivered,) = stage.on(tx.TxnBegan())

    assert isinstance(delivered, tx.Deliver)
    assert len(delivered.batch) == 1
