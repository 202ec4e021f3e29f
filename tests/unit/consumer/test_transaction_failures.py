"""How a shard's transactions end before their time, by a failure or a stop: each situation, event by event."""

from __future__ import annotations

import pytest

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import InputDemand
from broadsheet.consumer.shard.transaction_machine import DeliveryLimits
from tests.support.message_batches import WrittenJournal, single
from tests.support.transaction_stage import Stage, committed_one, kinds


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
    stage.on(tx.TxnFinalized({}, {}))
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
        stage.on(tx.TxnFinalized({}, {}))
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
    assert stage.takes() is InputDemand.NOTHING
    assert kinds(stage.on(tx.CommitResolved())) == [tx.PublishProgress, tx.RecordTxn, tx.Finish]


def test_stop_while_idle_finishes_at_once() -> None:
    """Nothing to commit, nothing to wait for."""
    assert Stage().on(tx.StopRequested()) == (tx.Finish(),)
