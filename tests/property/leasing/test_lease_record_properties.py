"""What holds of records whatever happens to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, strategies as st

from broadsheet.leases import rules
from broadsheet.leases.codec import decode, encode
from broadsheet.leases.compare_and_swap import stamped
from broadsheet.leases.errors import LeasingError
from broadsheet.leases.expiry import LastSeen, is_free, sighted
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Version, Versioned
from tests.support.lease_strategies import positions, records

WORKERS = ("w1", "w2", "w3")

rule_calls: st.SearchStrategy[Callable[[LeaseRecord], LeaseRecord]] = st.one_of(
    st.sampled_from(WORKERS).map(lambda worker: lambda record: rules.take(record, worker)),
    st.sampled_from(WORKERS).map(
        lambda worker: lambda record: rules.begin_hand_off(record, worker)
    ),
    st.sampled_from(WORKERS).map(lambda worker: lambda record: rules.claim(record, worker)),
    positions.map(lambda position: lambda record: rules.commit(record, position)),
    positions.map(lambda position: lambda record: rules.prepare(record, position, b"s")),
    st.sampled_from([rules.renew, rules.evict]),
)


@given(records)
def test_record_is_read_as_it_was_written(record: LeaseRecord) -> None:
    """Of any record, with any letters in it."""
    assert decode(encode(record).encode(), key=record.key) == record


@given(positions, positions, positions)
def test_positions_are_totally_ordered(a: Position, b: Position, c: Position) -> None:
    """Any two are ordered one way, by value, and the order can be chained."""
    places = [replace(each, offset=None) for each in (a, b, c)]
    low, middle, high = sorted(places)
    assert low <= middle <= high
    assert low <= high
    if not (low.is_name or high.is_name):
        assert (int(low.seq), low.sub) <= (int(high.seq), high.sub)


@given(st.lists(rule_calls, max_size=25))
def test_any_history_only_goes_forward(calls: list[Callable[[LeaseRecord], LeaseRecord]]) -> None:
    """Epochs and counters never fall, each epoch has one holder at most, and checkpoints never go back."""
    record = LeaseRecord(key="a")
    holder_by_epoch: dict[int, str] = {}
    for call in calls:
        try:
            after, write_id = stamped(record, call(record))
        except LeasingError:
            continue
        assert after.epoch - record.epoch in (0, 1)
        assert after.counter - record.counter in (0, 1)
        assert (write_id is not None) == (after.counter > record.counter)
        assert record.checkpoint is None or (
            after.checkpoint is not None and after.checkpoint >= record.checkpoint
        )
        if after.epoch > record.epoch:
            assert after.holder is not None
            holder_by_epoch[after.epoch] = after.holder
        else:
            assert after.holder in (None, record.holder)
        record = after
    assert list(holder_by_epoch) == list(range(1, record.epoch + 1))


@given(st.data())
def test_holder_stops_before_its_lease_is_free(data: st.DataObject) -> None:
    """However long requests and looks take, a lease is free only after its holder's own deadline.

    The holder counts a lease's length from when it sent its last renewal that was applied.
    """
    steps = st.lists(st.floats(0.0, 4.0), min_size=1, max_size=12)
    sent_moved = _spans(data.draw(steps), data.draw(steps))
    looks = _spans(data.draw(steps), data.draw(steps))
    sighting: LastSeen | None = None
    for asked, answered in looks:
        read = data.draw(st.floats(asked, answered))
        counter = sum(moved <= read for _, moved in sent_moved)
        record = LeaseRecord(key="a", owner="w1", epoch=1, counter=counter)
        sighting = sighted(sighting, record, now_seconds=answered)
        found = Versioned(record=record, version=Version("1"), fence=2)
        if counter and is_free(found, sighting, now_seconds=asked, lease_seconds=3.0):
            last_sent = sent_moved[counter - 1][0]
            assert asked > last_sent + 3.0


def _spans(pauses: list[float], lengths: list[float]) -> list[tuple[float, float]]:
    """Return requests, one after the other, as (begun, ended)."""
    spans, now = [], 0.0
    for pause, length in zip(pauses, lengths, strict=False):
        begun = now + pause
        now = begun + length
        spans.append((begun, now))
    return spans
