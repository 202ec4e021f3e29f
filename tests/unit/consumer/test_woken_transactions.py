"""Transactions that begin by time: an application asked for them, though no message may arrive."""

from __future__ import annotations

import pytest

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import InputDemand
from tests.support.message_batches import WrittenJournal, ack, cont, single
from tests.support.transaction_stage import Stage, kinds


def test_wake_without_input_begins_closes_and_commits() -> None:
    """Timers are due by time alone: a transaction of no message must be begun and committed for them."""
    stage = Stage(wake_at=107.0)
    assert stage.started[-1] == tx.SetTimer(107.0)

    assert kinds(stage.on(tx.Ticked(), later=7.0)) == [tx.BeginTxn]
    stage.on(tx.TxnBegan())
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]
    assert stage.close().sources == {}


def test_wake_before_its_time_waits_for_it() -> None:
    """The event loop's timer may fire early: the transaction begins when the time has come, not before."""
    stage = Stage(wake_at=107.0)

    assert stage.on(tx.Ticked(), later=6.0) == (tx.SetTimer(107.0),)


def test_wake_is_answered_by_a_transaction_that_input_began() -> None:
    """One transaction is enough: the application is asked again at its end."""
    journal = WrittenJournal()
    stage = Stage(wake_at=107.0)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)
    stage.on(tx.InputIdle())
    stage.close()
    stage.on(tx.CommitResolved())

    assert stage.on(tx.Ticked(), later=50.0) == ()


def test_wake_of_a_finalized_transaction_begins_the_next_beside_its_commit() -> None:
    """A wake that is due at once overlaps with the commit, as transactions of messages do, and closes after it."""
    stage = Stage(wake_at=100.0)
    stage.on(tx.TxnBegan())
    stage.on(tx.InputIdle())
    stage.on(tx.TxnFinalized({}, {}, wake_at=100.0))
    assert kinds(stage.on(tx.CommitStarted())) == [tx.BeginTxn]
    stage.on(tx.TxnBegan())
    assert stage.takes() is InputDemand.BATCH

    stage.on(tx.CommitResolved())
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]


def test_woken_transaction_does_not_wait_for_a_producers_acknowledgement() -> None:
    """A producer may take its time; timers that are due are not its."""
    journal = WrittenJournal()
    stage = Stage(wake_at=105.0)
    stage.on(tx.BatchRead(journal.batch(cont(10))))

    assert kinds(stage.on(tx.Ticked(), later=5.0)) == [tx.BeginTxn]
    stage.on(tx.TxnBegan())
    assert kinds(stage.on(tx.InputIdle())) == [tx.Finalize]


@pytest.mark.parametrize("end", [tx.StopRequested(), tx.SourcesClosed()], ids=["stop", "closed"])
def test_wake_after_the_end_of_input_is_left_to_the_next_life(end: tx.Event) -> None:
    """A shard that stops must not go on because of its timers, nor spin at one that is past."""
    stage = Stage(wake_at=105.0)

    assert kinds(stage.on(end, later=9.0)) == [tx.Finish]


def test_wake_that_is_due_waits_for_a_replay_without_ticking() -> None:
    """A timer set to what is past rings at once, and again, for as long as the replay takes."""
    journal = WrittenJournal()
    stage = Stage(wake_at=105.0, ring_messages=1)
    stage.on(tx.BatchRead(journal.batch(cont(10), cont(11), ack(12))))
    assert stage.takes() is InputDemand.REPLAY

    assert stage.on(tx.Ticked(), later=6.0) == ()

    assert kinds(stage.on(tx.ReplayRead(journal.read(0, 10)))) == [tx.BeginTxn]
