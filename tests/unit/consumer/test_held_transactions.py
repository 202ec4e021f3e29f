"""A hold on transactions: what runs is committed and acknowledged, nothing begins, and it goes on as if nothing was."""

from __future__ import annotations

import pytest

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import InputDemand
from tests.support.message_batches import WrittenJournal, cont, single
from tests.support.transaction_stage import Stage, kinds


def test_hold_of_an_idle_shard_is_answered_at_once_and_takes_no_input() -> None:
    """Nothing is to be waited for; input that comes stays where it is."""
    stage = Stage()
    assert kinds(stage.on(tx.HoldRequested())) == [tx.Held]
    assert stage.takes() is InputDemand.NOTHING
    assert stage.on(tx.Ticked(), later=60.0) == ()

    stage.on(tx.HoldReleased())
    assert stage.takes() is not InputDemand.BATCH, "one transaction follows by itself"


def test_hold_closes_the_running_transaction_and_waits_for_its_acknowledgements() -> None:
    """A fork begins behind all that was consumed: also messages must be out, for the child repeats none."""
    journal = WrittenJournal()
    stage = Stage(min_seconds=10.0)
    stage.on(tx.BatchRead(journal.batch(single(10))))
    stage.consume(1)

    assert kinds(stage.on(tx.HoldRequested())) == [tx.Finalize], "the minimum is not waited for"
    stage.on(tx.TxnFinalized({"out/a": b"A"}, {}, None, None))
    assert kinds(stage.on(tx.CommitStarted())) == [tx.AppendAcks]
    assert tx.Held not in kinds(stage.on(tx.CommitResolved()))
    assert tx.Held in kinds(stage.on(tx.AckResolved("out/a", 7)))
    assert stage.takes() is InputDemand.NOTHING


def test_hold_does_not_wait_for_a_producer_that_has_not_acknowledged() -> None:
    """A producer may be silent for minutes; what it has pending is in the checkpoint, and the child's too."""
    journal = WrittenJournal()
    stage = Stage()
    stage.on(tx.BatchRead(journal.batch(single(10), cont(11, producer=5))))
    stage.consume(1)

    assert kinds(stage.on(tx.HoldRequested())) == [tx.Finalize]


def test_transaction_that_began_and_has_nothing_yet_takes_one_delivery_before_the_hold() -> None:
    """It has the old range: left open over the hold, it would go on with keys that are another shard's."""
    journal = WrittenJournal()
    stage = Stage()
    assert kinds(stage.on(tx.BatchRead(journal.batch(single(10), single(11))))) == [tx.BeginTxn]
    assert stage.on(tx.HoldRequested()) == ()
    assert kinds(stage.on(tx.TxnBegan())) == [tx.Deliver]

    assert kinds(stage.on(tx.BatchDelivered(1))) == [tx.Finalize]


def test_release_begins_a_transaction_though_nothing_is_read() -> None:
    """What the hold changed may leave the application work: rows to remove."""
    stage = Stage()
    stage.on(tx.HoldRequested())
    assert kinds(stage.on(tx.HoldReleased())) == [tx.BeginTxn]


def test_release_without_a_hold_changes_nothing() -> None:
    """A time-out may come twice."""
    stage = Stage()
    assert stage.on(tx.HoldReleased()) == ()
    assert stage.takes() is InputDemand.BATCH


@pytest.mark.parametrize("end", [tx.StopRequested(), tx.SourcesClosed()], ids=["stop", "closed"])
def test_held_shard_that_is_to_end_ends_without_another_transaction(end: tx.Event) -> None:
    """Input at hand is another life's: in the hold nothing begins."""
    stage = Stage()
    stage.on(tx.HoldRequested())
    assert kinds(stage.on(end)) == [tx.Finish]


def test_machine_that_is_made_in_a_hold_begins_nothing() -> None:
    """Sources that changed in a hold make a new machine; it must not deliver before the hold is over."""
    stage = Stage(wake_at=0.0, holds=True)
    assert tx.Held in kinds(stage.started)
    assert stage.takes() is InputDemand.NOTHING


def test_wake_begins_a_transaction_though_nothing_is_read() -> None:
    """Rows of another shard are taken in with transactions."""
    stage = Stage()
    assert kinds(stage.on(tx.WakeRequested())) == [tx.BeginTxn]


def test_input_is_used_once_all_that_was_taken_is_handed_over() -> None:
    """A shard that stands somewhere has handled all before: not while a part waits for the next transaction."""
    journal = WrittenJournal()
    stage = Stage()
    assert _has_used_input(stage)
    stage.on(tx.BatchRead(journal.batch(single(10), single(11))))
    assert not _has_used_input(stage)
    stage.on(tx.TxnBegan())
    assert not _has_used_input(stage)
    stage.on(tx.BatchDelivered(2))
    assert _has_used_input(stage)


def _has_used_input(stage: Stage) -> bool:
    return stage.machine.has_used_input
