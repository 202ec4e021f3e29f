"""What a transaction machine tells of itself: its states event by event, and its story beside a failed invariant."""

from __future__ import annotations

import gc
import re
import weakref

import pytest

from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.transaction_events import InputDemand
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.story import STORY_EVENTS
from tests.support.message_batches import WrittenJournal, ack, cont, single
from tests.support.transaction_stage import Stage, committed_one

IDLE, CLOSED, STOP, TIME = (
    tx.InputIdle(),
    tx.SourcesClosed(),
    tx.StopRequested(),
    tx.TimePassed(),
)


def _last(stage: Stage, field: str) -> str:
    """Return the value of a part of the state, as the story tells it."""
    newest = re.search(rf"\b{field} (?:\w+ → )?(\w+)", stage.story())
    assert newest is not None
    return newest[1]


def _open_for_long() -> Stage:
    """Return a machine whose transaction consumed a message and may not close for five seconds."""
    stage = Stage(min_seconds=5)
    stage.on(tx.BatchRead(WrittenJournal().batch(single(10))))
    stage.consume(1)
    return stage


@pytest.mark.parametrize(
    ("events", "intake"),
    [
        ((), "OPEN"),
        ((IDLE,), "IDLE"),
        ((IDLE, IDLE), "IDLE"),
        ((IDLE, TIME), "OPEN"),
        ((CLOSED,), "CLOSED"),
        ((IDLE, CLOSED), "CLOSED"),
        ((CLOSED, IDLE), "CLOSED"),
        ((CLOSED, IDLE, TIME), "CLOSED"),
        ((STOP,), "STOPPED"),
        ((IDLE, STOP), "STOPPED"),
        ((CLOSED, STOP), "STOPPED"),
        ((STOP, CLOSED), "STOPPED"),
        ((STOP, IDLE, TIME), "STOPPED"),
    ],
)
def test_intake_goes_one_way_but_for_idleness(events: tuple[tx.Event, ...], intake: str) -> None:
    """Input that ended must not be asked for again, whatever is said of it afterwards: nobody would answer."""
    stage = _open_for_long()

    for event in events:
        stage.on(event)

    assert _last(stage, "intake") == intake
    assert (stage.takes() is InputDemand.BATCH) == (intake in {"OPEN", "IDLE"})


def test_closed_sources_keep_the_minimum_duration_and_a_stop_does_not() -> None:
    """A stop is in a hurry; sources that ended are not, so a stop that comes later still changes something."""
    stage = _open_for_long()
    assert stage.on(CLOSED) == ()

    (finalize,) = stage.on(STOP)

    assert isinstance(finalize, tx.Finalize)


def test_phases_and_prior_follow_the_drawing() -> None:
    """One transaction through every phase: what an operator reads in the story is what the module's drawing says."""
    stage = Stage()
    committed_one(stage, WrittenJournal())
    stage.on(tx.CommitResolved())
    stage.on(tx.AckResolved("out/a", 7))

    told = "\n".join(reversed(stage.story().splitlines()))

    assert re.findall(r"phase (\w+ → \w+)", told) == [
        "CONSUMING → BEGINNING",
        "BEGINNING → DELIVERING",
        "DELIVERING → CONSUMING",
        "CONSUMING → FINALIZING",
        "FINALIZING → COMMITTING",
        "COMMITTING → CONSUMING",
    ]
    assert re.findall(r"prior (\w+ → \w+)", told) == [
        "none → committing",
        "committing → acknowledging",
        "acknowledging → none",
    ]
    assert "BatchRead(in/a, 1): phase CONSUMING → BEGINNING" in told
    assert "⇒ RecordSequenced, BeginTxn" in told


def test_replay_is_told_with_its_range() -> None:
    """What memory lost is read again, beside the phases; the story says which part of which journal."""
    journal = WrittenJournal()
    stage = Stage(ring_messages=1)
    stage.on(tx.BatchRead(journal.batch(cont(10), cont(11), ack(12))))
    assert stage.takes() is InputDemand.REPLAY

    assert "replay None → StartReplay(journal='in/a', begin=0" in stage.story()


def test_failed_invariant_carries_the_story_up_to_its_event() -> None:
    """Whoever reads the report of a crash has no debugger: the events that led there are in it."""
    journal = WrittenJournal()
    stage = Stage()
    stage.on(tx.BatchRead(journal.batch(single(10))))

    with pytest.raises(AssertionError, match="of 1 messages consumed") as failed:
        stage.consume(2)

    (note,) = failed.value.__notes__
    lines = note.splitlines()
    assert lines[0].startswith("the last 4 events of the transaction machine")
    assert lines[1].strip().startswith("+0.000 s BatchDelivered(2)")
    assert lines[-1].strip().startswith("before: phase CONSUMING, intake OPEN")


def test_story_is_bounded_and_holds_no_batch_and_no_error() -> None:
    """A shard lives for months, and a batch is megabytes: what is over must leave memory."""
    journal = WrittenJournal()
    stage = Stage()
    batch = journal.batch(cont(10))
    stage.on(tx.BatchRead(batch))
    stage.on(tx.BatchRead(journal.batch(ack(11))))
    stage.consume(1)
    holders = [type(holder) for holder in gc.get_referrers(batch)]
    for _ in range(3 * STORY_EVENTS):
        stage.on(tx.TimePassed(), later=1.0)
    error = ServiceError("x" * 100_000)
    stage.on(tx.CallbackFailed(error))
    held = weakref.ref(error)
    del error
    gc.collect()

    told = stage.story()

    assert not {tuple, tx.BatchRead, tx.Deliver}.intersection(holders)
    assert held() is None
    assert len(told.splitlines()) == 2 + STORY_EVENTS
    assert "CallbackFailed(ServiceError): phase" in told
    assert len(told) < 200 * STORY_EVENTS
