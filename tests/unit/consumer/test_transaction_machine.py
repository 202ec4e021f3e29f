"""When transactions begin, wait, close, commit and acknowledge: each situation, event by event, on our own clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from consumer.core import transaction_events as tx
from consumer.core.delivery import DeliveryLimits
from consumer.core.transaction import TransactionMachine
from consumer.core.transaction_events import Activity, Demand, Event, Instruction, TxnLimits
from consumer.message.sequencer import Sequencer
from consumer.protocol.shard_pb2 import Checkpoint
from tests.support.message_batches import WrittenJournal, ack, cont, single


class Stage:
    """A machine, a clock, and what it said last."""

    def __init__(
        self,
        *,
        recovered: Checkpoint | None = None,
        min_seconds: float = 0.0,
        max_seconds: float = 10.0,
        wait_for_ack: bool = True,
        ring_messages: int = 100,
        delivery: DeliveryLimits | None = None,
    ) -> None:
        checkpoint = recovered or Checkpoint()
        self.now = 100.0
        self.sequenced: list[tx.RecordSequenced] = []
        self.machine = TransactionMachine(
            Sequencer(checkpoint.sources, ring_messages=ring_messages),
            checkpoint,
            limits=TxnLimits(
                min_seconds=min_seconds, max_seconds=max_seconds, wait_for_ack=wait_for_ack
            ),
            delivery=delivery,
        )
        self.started = self.machine.start(self.now)

    def takes(self) -> Demand:
        """Return what input it can take now."""
        return self.machine.demand

    def activity(self) -> Activity:
        """Return what it waits for now."""
        return self.machine.activity

    def on(self, event: Event, *, later: float = 0.0) -> tuple[Instruction, ...]:
        """Let time pass, then an event happen; return what it orders."""
        self.now += later
        found = self.machine.on(event, self.now)
        self.sequenced += [i for i in found if isinstance(i, tx.RecordSequenced)]
        return tuple(i for i in found if not isinstance(i, tx.RecordSequenced))

    def consume(self, count: int) -> tuple[Instruction, ...]:
        """Begin a transaction and consume the delivery that follows."""
        delivered = self.on(tx.TxnBegan())
        assert isinstance(delivered[0], tx.Deliver), delivered
        return self.on(tx.BatchDelivered(count))

    def close(self, intents: Mapping[str, bytes] | None = None) -> Checkpoint:
        """Go from a `Finalize` to a started commit; return its checkpoint."""
        (start,) = self.on(tx.TxnFinalized(intents or {}))
        assert isinstance(start, tx.StartCommit)
        self.on(tx.CommitStarted())
        return start.checkpoint


def kinds(instructions: tuple[Instruction, ...]) -> list[type[Instruction]]:
    """Return the types of instructions."""
    return [type(instruction) for instruction in instructions]


def committed_one(stage: Stage, journal: WrittenJournal, clock: int = 10) -> None:
    """Run one transaction of one message up to its started commit, with one acknowledgement to write."""
    stage.on(tx.BatchRead(journal.batch(single(clock))))
    stage.consume(1)
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    stage.close({"out/a": b"ack"})


def test_start_without_intents_publishes_recovered_progress() -> None:
    """A fresh start has nothing to acknowledge, and readers learn at once how far the shard is."""
    recovered = Checkpoint()
    recovered.sources["in/a"].read_through = 40

    stage = Stage(recovered=recovered)

    assert stage.started == (tx.PublishProgress({"in/a": 40}, {}),)
    assert stage.takes() is Demand.BATCH


def test_start_with_intents_acknowledges_again_and_holds_the_first_commit() -> None:
    """Re-acknowledging overlaps with consuming, but nothing commits before it is done; a deleted journal is fine."""
    journal = WrittenJournal()
    recovered = Checkpoint(ack_intents={"out/a": b"A", "out/gone": b"B"})
    stage = Stage(recovered=recovered)
    assert stage.started == (tx.AppendAcks({"out/a": b"A", "out/gone": b"B"}, recovered=True),)

    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    assert stage.takes() is Demand.BATCH
    stage.on(tx.AckResolved("out/gone"))
    finished = stage.on(tx.AckResolved("out/a", 7))

    assert finished[0] == tx.PublishProgress({}, {"out/a": 7})
    assert stage.takes() is Demand.BATCH_IF_READY


def test_first_message_begins_a_transaction_then_delivers() -> None:
    """The application hears of a transaction before its first message."""
    journal = WrittenJournal()
    stage = Stage()

    assert kinds(stage.on(tx.BatchRead(journal.batch(single(10), single(11))))) == [tx.BeginTxn]
    (delivered,) = stage.on(tx.TxnBegan())

    assert isinstance(delivered, tx.Deliver)
    assert delivered.first
    assert list(delivered.batch.clocks) == [10, 11]
    assert stage.takes() is Demand.NOTHING


def test_prior_resolves_then_min_elapses_then_stall_closes() -> None:
    """All obligations in order: commit, acknowledgement, minimum duration; then the first idle instant closes."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=5)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    assert stage.consume(1) == (tx.SetTimer(stage.now + 5),)
    stage.on(tx.Ticked(), later=5)
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    checkpoint = stage.close({"out/a": b"ack"})
    assert checkpoint.sources["in/a"].read_through == 10
    assert dict(checkpoint.ack_intents) == {"out/a": b"ack"}

    stage.on(tx.BatchRead(journal.batch(single(20))), later=1)
    (timer,) = stage.consume(1)
    assert timer == tx.SetTimer(stage.now + 5)
    assert stage.on(tx.CommitResolved()) == ()
    published, recorded = stage.on(tx.AckResolved("out/a", 33), later=1)
    assert published == tx.PublishProgress({"in/a": 10}, {"out/a": 33})
    assert isinstance(recorded, tx.RecordTxn)
    assert (recorded.messages, recorded.message_bytes) == (1, 10)
    assert stage.takes() is Demand.BATCH
    assert stage.on(tx.Ticked(), later=4) == (tx.SetTimer(stage.now + 5),)
    assert stage.takes() is Demand.BATCH_IF_READY
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]


def test_min_elapses_then_still_waits_for_the_prior_and_its_acknowledgement() -> None:
    """Commits never overlap, and N+1 does not commit before N's outputs are visible."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)
    stage.on(tx.BatchRead(journal.batch(single(20))))
    stage.consume(1)

    assert stage.takes() is Demand.BATCH
    stage.on(tx.CommitResolved())
    assert stage.takes() is Demand.BATCH
    stage.on(tx.AckResolved("out/a", 1))

    assert stage.takes() is Demand.BATCH_IF_READY


def test_max_elapses_while_prior_is_outstanding_stalls_input() -> None:
    """The one case in which ready input is left: the transaction is full, and the one before it is not through."""
    journal = WrittenJournal()
    stage = Stage(max_seconds=10)
    committed_one(stage, journal)
    stage.on(tx.BatchRead(journal.batch(single(20))))
    stage.consume(1)

    stage.on(tx.Ticked(), later=10)
    assert stage.takes() is Demand.NOTHING
    stage.on(tx.CommitResolved(), later=2)
    assert kinds(stage.on(tx.AckResolved("out/a", 1), later=1))[-1] is tx.Finalize
    stage.close()
    _, recorded = stage.on(tx.CommitResolved(), later=1)

    assert isinstance(recorded, tx.RecordTxn)
    assert recorded.timings.finalizing - recorded.timings.stalled == pytest.approx(3)


def test_pending_messages_do_not_begin_a_transaction() -> None:
    """Nothing is consumed before its acknowledgement is read; a pending span then holds the transaction open."""
    journal = WrittenJournal()
    stage = Stage(max_seconds=60)

    assert stage.on(tx.BatchRead(journal.batch(cont(10), cont(11)))) == ()
    assert stage.takes() is Demand.BATCH
    stage.on(tx.BatchRead(journal.batch(ack(12))))
    (delivered,) = stage.on(tx.TxnBegan())
    assert isinstance(delivered, tx.Deliver)
    assert list(delivered.batch.clocks) == [10, 11]
    stage.on(tx.BatchDelivered(2))
    assert stage.takes() is Demand.BATCH_IF_READY

    stage.on(tx.BatchRead(journal.batch(cont(20, producer=2))), later=1)
    assert stage.takes() is Demand.BATCH
    stage.on(tx.BatchRead(journal.batch(ack(21, producer=2))), later=1)
    stage.on(tx.BatchDelivered(1))
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]


def test_pending_span_does_not_hold_if_told_not_to_wait() -> None:
    """`disable_wait_for_ack` trades whole producer transactions for latency."""
    journal = WrittenJournal()
    stage = Stage(wait_for_ack=False)
    stage.on(tx.BatchRead(journal.batch(single(10), cont(20, producer=2))))
    stage.consume(1)

    assert stage.takes() is Demand.BATCH_IF_READY
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    checkpoint = stage.close()

    assert checkpoint.sources["in/a"].read_through == 20


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


def test_closed_input_still_honours_prior_and_min() -> None:
    """The end of input is no reason to commit early; then everything consumed commits, and the loop ends."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=5)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)

    stage.on(tx.SourcesClosed())
    assert stage.takes() is Demand.NOTHING
    assert kinds(stage.on(tx.Ticked(), later=5)) == [tx.Finalize]
    stage.close()

    assert kinds(stage.on(tx.CommitResolved())) == [tx.PublishProgress, tx.RecordTxn, tx.Finish]


def test_closed_input_without_anything_consumed_finishes() -> None:
    """An empty source ends cleanly and commits nothing."""
    stage = Stage()

    assert stage.on(tx.SourcesClosed()) == (tx.Finish(),)


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
    """Its completion then tells the offset with the duplicate, though its checkpoint does not hold it."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)

    assert stage.on(tx.BatchRead(journal.batch(single(10)))) == ()
    stage.on(tx.CommitResolved())
    published, _ = stage.on(tx.AckResolved("out/a", 1))

    assert published == tx.PublishProgress({"in/a": 20}, {"out/a": 1})


def test_duplicates_of_a_fresh_shard_extend_an_empty_checkpoint() -> None:
    """Trap: the very first checkpoint has no sources at all, and must take the duplicate's offset anyway."""
    journal = WrittenJournal()
    recovered = Checkpoint(ack_intents={"out/a": b"A"})
    stage = Stage(recovered=recovered)
    stage.on(tx.BatchRead(journal.batch(cont(10), cont(10))))

    published, *_ = stage.on(tx.AckResolved("out/a", 1))

    assert published == tx.PublishProgress({"in/a": 20}, {"out/a": 1})


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
    assert stage.takes() is Demand.NOTHING
    stage.on(tx.CommitResolved())
    assert kinds(stage.on(tx.AckResolved("out/a", 1)))[-1] is tx.Finalize


def test_span_beyond_memory_is_replayed() -> None:
    """What the ring dropped is read once more, and delivered in order with what it kept."""
    journal = WrittenJournal()
    stage = Stage(ring_messages=1)
    (replay,) = stage.on(tx.BatchRead(journal.batch(cont(10), cont(11), ack(12))))
    assert replay == tx.StartReplay("in/a", 0, 10)
    assert stage.takes() is Demand.REPLAY

    assert kinds(stage.on(tx.ReplayRead(journal.read(0, 10)))) == [tx.BeginTxn]
    (first,) = stage.on(tx.TxnBegan())
    assert isinstance(first, tx.Deliver)
    assert list(first.batch.clocks) == [10]
    stage.on(tx.BatchDelivered(1))
    assert stage.takes() is Demand.REPLAY
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


def test_failed_commit_fails_the_loop_and_held_append_errors_do_not_hide_it() -> None:
    """The commit explains what went wrong; the appends that waited for it failed only because of it."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)
    fenced = RuntimeError("fenced")

    assert stage.on(tx.AckResolved("out/a", error=OSError("a dependency failed"))) == ()
    (failure,) = stage.on(tx.CommitResolved(fenced))

    assert failure == tx.Fail(fenced)


def test_commit_that_fails_as_it_starts_fails_at_once() -> None:
    """No more messages are fed to an application whose store is broken."""
    journal = WrittenJournal()
    stage = Stage()
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    stage.on(tx.InputIdle())
    stage.on(tx.TxnFinalized({}))
    broken = OSError("disk full")

    assert stage.on(tx.CommitResolved(broken)) == (tx.Fail(broken),)
    assert stage.on(tx.Ticked()) == ()


def test_failed_acknowledgement_of_a_durable_commit_fails_the_loop() -> None:
    """The next primary will write it again from the checkpoint."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)
    stage.on(tx.CommitResolved())
    error = OSError("journal is gone")

    assert stage.on(tx.AckResolved("out/a", error=error)) == (tx.Fail(error),)


def test_failed_append_of_the_running_transaction_fails_without_a_commit() -> None:
    """What can never be published need not wait for the commit that would find out."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=100)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    error = OSError("journal is gone")

    assert stage.on(tx.AppendFailed(error)) == (tx.Fail(error),)


@pytest.mark.parametrize("at", ["begin", "deliver", "finalize", "start_commit"])
def test_callback_error_fails_and_tells_only_a_begun_transaction(at: str) -> None:
    """`finished_txn` is owed if the transaction began, unless the commit's own callback told already."""
    journal = WrittenJournal()
    stage = Stage()
    stage.on(tx.BatchRead(journal.batch(single(10))))
    if at != "begin":
        stage.on(tx.TxnBegan())
    if at in ("finalize", "start_commit"):
        stage.on(tx.BatchDelivered(1))
        stage.on(tx.InputIdle())
    if at == "start_commit":
        stage.on(tx.TxnFinalized({}))
    error = ValueError("bug")

    (failure,) = stage.on(tx.CallbackFailed(error))

    assert failure == tx.Fail(error)


def test_source_error_fails() -> None:
    """A source that cannot be read fails the shard, whatever the others do."""
    stage = Stage()
    error = OSError("journal is gone")

    assert stage.on(tx.SourceFailed(error)) == (tx.Fail(error),)


def test_stop_commits_what_was_consumed_and_drops_the_rest() -> None:
    """A stop neither waits for the minimum duration nor takes what is still at hand; the commit is awaited."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=100, delivery=DeliveryLimits(messages_max=1))
    stage.on(tx.BatchRead(journal.batch(single(10), single(11))))
    stage.on(tx.TxnBegan())
    stage.on(tx.StopRequested())

    assert kinds(stage.on(tx.BatchDelivered(1))) == [tx.Finalize]
    assert stage.close().sources["in/a"].read_through == 10
    assert stage.takes() is Demand.NOTHING
    assert kinds(stage.on(tx.CommitResolved())) == [tx.PublishProgress, tx.RecordTxn, tx.Finish]


def test_stop_while_idle_finishes_at_once() -> None:
    """Nothing to commit, nothing to wait for."""
    assert Stage().on(tx.StopRequested()) == (tx.Finish(),)


def test_changed_limits_hold_from_the_next_transaction_on() -> None:
    """A running transaction keeps the limits that it began with."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=0)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.on(tx.LimitsChanged(TxnLimits(min_seconds=7, max_seconds=9, wait_for_ack=True)))
    stage.consume(1)
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    stage.close()
    stage.on(tx.CommitResolved())
    stage.on(tx.BatchRead(journal.batch(single(20))))

    assert stage.consume(1) == (tx.SetTimer(stage.now + 7),)


def test_activity_tells_work_from_waiting() -> None:
    """Who watches for stalls must know whether something has to move: a callback, a commit or an acknowledgement; not
    a transaction that is open for longer, and takes what comes.
    """
    journal = WrittenJournal("in/a")
    stage = Stage(min_seconds=5.0, max_seconds=60.0)
    assert stage.activity() is Activity.READING

    stage.on(tx.BatchRead(journal.batch(single(10))))
    assert stage.activity() is Activity.WORKING, "begin_txn is called"
    stage.consume(1)
    assert stage.activity() is Activity.READING, "open for its minimum, and for more"

    stage.on(tx.Ticked(), later=5.0)
    stage.on(tx.InputIdle())
    assert stage.activity() is Activity.WORKING, "finalize_txn is called"
    stage.close({"out/a": b"ack"})
    assert stage.activity() is Activity.WORKING, "it commits"
    stage.on(tx.CommitResolved(None))
    assert stage.activity() is Activity.WORKING, "it is acknowledged"
    stage.on(tx.AckResolved("out/a", 10))
    assert stage.activity() is Activity.READING


def test_activity_of_a_transaction_that_takes_no_more_is_waiting() -> None:
    """The application left input to the next transaction, and this one may not close yet: only time has to pass."""
    journal = WrittenJournal("in/a")
    stage = Stage(min_seconds=5.0, max_seconds=60.0)
    stage.on(tx.BatchRead(journal.batch(single(10), single(11))))
    stage.consume(1)

    assert stage.activity() is Activity.WAITING


def test_checkpoint_keeps_an_acknowledgement_of_before_which_is_not_written_again() -> None:
    """A transaction that published nothing still tells a successor where our producer committed last; a fresh machine
    has nothing to tell: what it restored is another producer's.
    """
    journal = WrittenJournal()
    stage = Stage(recovered=Checkpoint(ack_intents={"out/old": b"theirs"}))
    stage.on(tx.AckResolved("out/old", 1))
    checkpoints: list[Checkpoint] = []
    for clock, intents in ((10, {}), (20, {"out/a": b"first", "out/b": b"second"}), (30, {})):
        stage.on(tx.BatchRead(journal.batch(single(clock))))
        stage.consume(1)
        assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
        (start,) = stage.on(tx.TxnFinalized(intents))
        assert isinstance(start, tx.StartCommit)
        checkpoints.append(start.checkpoint)
        appended = stage.on(tx.CommitStarted())
        assert kinds(appended) == ([tx.AppendAcks] if intents else [])
        stage.on(tx.CommitResolved())
        for name in intents:
            stage.on(tx.AckResolved(name, 1))

    assert [dict(checkpoint.ack_intents) for checkpoint in checkpoints] == [
        {},
        {"out/a": b"first", "out/b": b"second"},
        {"out/b": b"second"},
    ]
