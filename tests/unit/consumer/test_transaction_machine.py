"""When transactions begin, wait, close, commit and acknowledge: each situation, event by event, on our own clock."""

from __future__ import annotations

import pytest

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import Activity, InputDemand, TxnLimits
from broadsheet.consumer.shard.transaction_machine import (
    BUSY_TXN_SECONDS_LEAST,
    COMMITS_PER_BUSY_TXN,
    FIRST_TXN_SECONDS,
)
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.message_batches import WrittenJournal, ack, cont, single
from tests.support.transaction_stage import Stage, committed_one, kinds


def test_start_without_intents_publishes_recovered_progress() -> None:
    """A fresh start has nothing to acknowledge, and readers learn at once how far the shard is."""
    recovered = Checkpoint()
    recovered.sources["in/a"].read_through = 40

    stage = Stage(recovered=recovered)

    assert stage.started == (tx.PublishProgress({"in/a": 40}, {}, {"in/a": 40}),)
    assert stage.takes() is InputDemand.BATCH


def test_start_with_intents_acknowledges_again_and_holds_the_first_commit() -> None:
    """Re-acknowledging overlaps with consuming, but nothing commits before it is done; a deleted journal is fine."""
    journal = WrittenJournal()
    recovered = Checkpoint(ack_intents={"out/a": b"A", "out/gone": b"B"})
    stage = Stage(recovered=recovered)
    assert stage.started == (tx.AppendAcks({"out/a": b"A", "out/gone": b"B"}, recovered=True),)

    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    assert stage.takes() is InputDemand.BATCH
    stage.on(tx.AckResolved("out/gone"))
    finished = stage.on(tx.AckResolved("out/a", 7))

    assert finished[0] == tx.PublishProgress({}, {"out/a": 7}, {})
    assert stage.takes() is InputDemand.BATCH_IF_READY


def test_first_message_begins_a_transaction_then_delivers() -> None:
    """The application hears of a transaction before its first message."""
    journal = WrittenJournal()
    stage = Stage()

    assert kinds(stage.on(tx.BatchRead(journal.batch(single(10), single(11))))) == [tx.BeginTxn]
    (delivered,) = stage.on(tx.TxnBegan())

    assert isinstance(delivered, tx.Deliver)
    assert delivered.first
    assert list(delivered.batch.clocks) == [10, 11]
    assert stage.takes() is InputDemand.NOTHING


def test_prior_resolves_then_min_elapses_then_stall_closes() -> None:
    """All obligations in order: commit, acknowledgement, minimum duration; then the first idle instant closes."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=5)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    assert stage.consume(1) == (tx.SetTimer(stage.now + 5),)
    assert kinds(stage.on(tx.Ticked(), later=5)) == [tx.Finalize]
    checkpoint = stage.close({"out/a": b"ack"})
    assert checkpoint.sources["in/a"].read_through == 10
    assert dict(checkpoint.ack_intents) == {"out/a": b"ack"}

    stage.on(tx.BatchRead(journal.batch(single(20))), later=1)
    (timer,) = stage.consume(1)
    assert timer == tx.SetTimer(stage.now + 5)
    assert stage.on(tx.CommitResolved()) == ()
    published, recorded = stage.on(tx.AckResolved("out/a", 33), later=1)
    assert published == tx.PublishProgress({"in/a": 10}, {"out/a": 33}, {"in/a": 10})
    assert isinstance(recorded, tx.RecordTxn)
    assert (recorded.messages, recorded.message_bytes) == (1, 10)
    assert stage.takes() is InputDemand.BATCH
    assert stage.on(tx.Ticked(), later=4) == (tx.SetTimer(stage.now + 5),)
    assert stage.takes() is InputDemand.BATCH_IF_READY
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]


def test_first_transaction_does_not_go_on_for_ready_input_alone() -> None:
    """Who takes a shard over finds input ready for as long as it takes some; what waits for output sees it soon."""
    journal = WrittenJournal()
    stage = Stage(max_seconds=10)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    assert stage.takes() is InputDemand.BATCH_IF_READY
    stage.on(tx.BatchRead(journal.batch(single(11))), later=FIRST_TXN_SECONDS)
    assert kinds(stage.on(tx.BatchDelivered(1))) == [tx.Finalize]
    stage.close()
    stage.on(tx.CommitResolved())

    stage.on(tx.BatchRead(journal.batch(single(12)), is_behind=True))
    stage.consume(1)
    stage.on(tx.BatchRead(journal.batch(single(13)), is_behind=True), later=9 * FIRST_TXN_SECONDS)
    assert stage.on(tx.BatchDelivered(1)) == ()
    assert stage.takes() is InputDemand.BATCH_IF_READY


def test_busy_transaction_closes_after_some_times_its_predecessors_commit() -> None:
    """Under load input is always ready. A transaction takes it for as long as makes commits a small part of the work,
    and then leaves it to the next one, long before its maximum duration: somebody waits for its output.
    """
    journal = WrittenJournal()
    stage = Stage(max_seconds=100)
    commit_seconds = _commit_one(stage, journal, seconds=0.5)
    enough = COMMITS_PER_BUSY_TXN * commit_seconds

    stage.on(tx.BatchRead(journal.batch(single(20))))
    stage.consume(1)
    assert stage.takes() is InputDemand.BATCH_IF_READY
    stage.on(tx.BatchRead(journal.batch(single(21))), later=enough - 0.1)
    assert stage.on(tx.BatchDelivered(1)) == ()
    stage.on(tx.BatchRead(journal.batch(single(22))), later=0.2)
    assert kinds(stage.on(tx.BatchDelivered(1))) == [tx.Finalize]


def test_busy_transaction_of_a_quick_store_takes_ready_input_for_its_least_time() -> None:
    """A commit of no time at all must not make transactions of single batches."""
    journal = WrittenJournal()
    stage = Stage(max_seconds=100)
    _commit_one(stage, journal, seconds=0.0)

    stage.on(tx.BatchRead(journal.batch(single(20))))
    stage.consume(1)
    stage.on(tx.BatchRead(journal.batch(single(21))), later=BUSY_TXN_SECONDS_LEAST / 2)
    assert stage.on(tx.BatchDelivered(1)) == ()
    stage.on(tx.BatchRead(journal.batch(single(22))), later=BUSY_TXN_SECONDS_LEAST)
    assert kinds(stage.on(tx.BatchDelivered(1))) == [tx.Finalize]


def test_busy_transaction_keeps_its_minimum_duration() -> None:
    """Who asks for long transactions gets them, however quick the store is."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=5, max_seconds=100)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    assert kinds(stage.on(tx.Ticked(), later=5)) == [tx.Finalize]
    stage.close()
    stage.on(tx.CommitResolved())

    stage.on(tx.BatchRead(journal.batch(single(20))))
    stage.consume(1)
    stage.on(tx.BatchRead(journal.batch(single(21))), later=4)
    assert stage.on(tx.BatchDelivered(1)) == ()
    stage.on(tx.BatchRead(journal.batch(single(22))), later=1)
    assert kinds(stage.on(tx.BatchDelivered(1))) == [tx.Finalize]


def _commit_one(stage: Stage, journal: WrittenJournal, *, seconds: float) -> float:
    """Run the machine's first transaction, whose commit takes this long; return how long it took."""
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    stage.close()
    stage.on(tx.CommitResolved(), later=seconds)
    return seconds


def test_first_transaction_keeps_its_minimum_and_waits_for_acknowledgements() -> None:
    """That it is the first shortens nothing that was asked for."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=5)
    stage.on(tx.BatchRead(journal.batch(single(10), cont(20, producer=2))))
    stage.consume(1)

    stage.on(tx.Ticked(), later=4)
    assert stage.takes() is InputDemand.BATCH
    stage.on(tx.Ticked(), later=1)
    assert stage.takes() is InputDemand.BATCH
    stage.on(tx.BatchRead(journal.batch(ack(21, producer=2))))
    assert kinds(stage.on(tx.BatchDelivered(1))) == [tx.Finalize]


def test_min_elapses_then_still_waits_for_the_prior_and_its_acknowledgement() -> None:
    """Commits never overlap, and N+1 does not commit before N's outputs are visible."""
    journal = WrittenJournal()
    stage = Stage()
    committed_one(stage, journal)
    stage.on(tx.BatchRead(journal.batch(single(20))))
    stage.consume(1)

    assert stage.takes() is InputDemand.BATCH
    stage.on(tx.CommitResolved())
    assert stage.takes() is InputDemand.BATCH
    stage.on(tx.AckResolved("out/a", 1))

    assert stage.takes() is InputDemand.BATCH_IF_READY


def test_max_elapses_while_prior_is_outstanding_stalls_input() -> None:
    """The one case in which ready input is left: the transaction is full, and the one before it is not through."""
    journal = WrittenJournal()
    stage = Stage(max_seconds=10)
    committed_one(stage, journal)
    stage.on(tx.BatchRead(journal.batch(single(20))))
    stage.consume(1)

    stage.on(tx.Ticked(), later=10)
    assert stage.takes() is InputDemand.NOTHING
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
    assert stage.takes() is InputDemand.BATCH
    stage.on(tx.BatchRead(journal.batch(ack(12))))
    (delivered,) = stage.on(tx.TxnBegan())
    assert isinstance(delivered, tx.Deliver)
    assert list(delivered.batch.clocks) == [10, 11]
    stage.on(tx.BatchDelivered(2))
    assert stage.takes() is InputDemand.BATCH_IF_READY

    stage.on(tx.BatchRead(journal.batch(cont(20, producer=2))))
    assert stage.takes() is InputDemand.BATCH
    stage.on(tx.BatchRead(journal.batch(ack(21, producer=2))))
    stage.on(tx.BatchDelivered(1))
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]


def test_pending_span_does_not_hold_if_told_not_to_wait() -> None:
    """`disable_wait_for_ack` trades whole producer transactions for latency."""
    journal = WrittenJournal()
    stage = Stage(wait_for_ack=False)
    stage.on(tx.BatchRead(journal.batch(single(10), cont(20, producer=2))))
    stage.consume(1)

    assert stage.takes() is InputDemand.BATCH_IF_READY
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    checkpoint = stage.close()

    assert checkpoint.sources["in/a"].read_through == 20


def test_closed_input_still_honours_prior_and_min() -> None:
    """The end of input is no reason to commit early; then everything consumed commits, and the loop ends."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=5)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)

    stage.on(tx.SourcesClosed())
    assert stage.takes() is InputDemand.NOTHING
    assert kinds(stage.on(tx.Ticked(), later=5)) == [tx.Finalize]
    stage.close()

    assert kinds(stage.on(tx.CommitResolved())) == [tx.PublishProgress, tx.RecordTxn, tx.Finish]


def test_closed_input_without_anything_consumed_finishes() -> None:
    """An empty source ends cleanly and commits nothing."""
    stage = Stage()

    assert stage.on(tx.SourcesClosed()) == (tx.Finish(),)


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
    transactions = (
        (10, tx.TxnFinalized({}, {})),
        (
            20,
            tx.TxnFinalized({"out/a": b"first", "out/b": b"messages second"}, {"out/b": b"second"}),
        ),
        (30, tx.TxnFinalized({}, {})),
    )
    for clock, finalized in transactions:
        stage.on(tx.BatchRead(journal.batch(single(clock))))
        stage.consume(1)
        assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
        (start,) = stage.on(finalized)
        assert isinstance(start, tx.StartCommit)
        checkpoints.append(start.checkpoint)
        appended = stage.on(tx.CommitStarted())
        assert kinds(appended) == ([tx.AppendAcks] if finalized.ack_intents else [])
        stage.on(tx.CommitResolved())
        for name in finalized.ack_intents:
            stage.on(tx.AckResolved(name, 1))

    assert [dict(checkpoint.ack_intents) for checkpoint in checkpoints] == [
        {},
        {"out/a": b"first", "out/b": b"messages second"},
        {"out/b": b"second"},
    ]


def test_note_without_a_message_is_committed_by_itself() -> None:
    """A source that is silent until the shard stops must have said where it resumes; the next transaction is empty."""
    stage = Stage()

    assert kinds(stage.on(tx.BatchRead(note(b"here")))) == [tx.BeginTxn]
    stage.on(tx.TxnBegan())
    assert stage.takes() is InputDemand.BATCH_IF_READY
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    checkpoint = stage.close()

    assert checkpoint.sources["bus"].resume == b"here"
    assert stage.sequenced == []
    stage.on(tx.CommitResolved())
    assert stage.on(tx.InputIdle()) == ()
    assert stage.takes() is InputDemand.BATCH


def test_note_that_a_stop_overtakes_is_still_committed() -> None:
    """What was taken is finished, however the shard ends."""
    stage = Stage(min_seconds=5)
    stage.on(tx.BatchRead(note(b"here")))

    stage.on(tx.StopRequested())
    assert kinds(stage.on(tx.TxnBegan())) == [tx.Finalize]
    assert stage.close().sources["bus"].resume == b"here"
    assert kinds(stage.on(tx.CommitResolved()))[-1:] == [tx.Finish]


def test_note_goes_with_the_messages_of_its_transaction() -> None:
    """One commit is enough for both, and the first message may be deferred by no application."""
    journal = WrittenJournal()
    stage = Stage()
    stage.on(tx.BatchRead(note(b"here")))
    stage.on(tx.TxnBegan())

    (delivered,) = stage.on(tx.BatchRead(journal.batch(single(10))))
    assert isinstance(delivered, tx.Deliver)
    assert delivered.first
    stage.on(tx.BatchDelivered(1))
    stage.on(tx.InputIdle())
    checkpoint = stage.close()

    assert checkpoint.sources["bus"].resume == b"here"
    assert checkpoint.sources["in/a"].read_through == 10


def note(content: bytes) -> MessageBatch:
    """Return a note of a source that is no journal."""
    return MessageBatch.note("bus", JsonType(), {"bus": content})
