"""A holder has stopped by its own clock before anybody may think so: any latencies, looks and renewals."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from broadsheet.leases import rules
from broadsheet.leases.expiry import LastSeen
from broadsheet.leases.record import LeaseRecord, Version, Versioned
from broadsheet.leases.worker.lease_view import LeaseScan, Memory, Viewer, outlook

LEASE_SECONDS = 2.0
OBSERVER = Viewer(
    me="w2", lease_seconds=LEASE_SECONDS, asking_seconds=40.0, store_tells_who_lives=False
)

slow = st.integers(0, 6).map(lambda quarters: quarters / 4)
quick = st.sampled_from([0.0, 0.0, 0.25])
renewals = st.lists(st.tuples(slow, slow, slow), max_size=6)
"""Pause before each is sent, the time until the store has it, and the time until its answer is there."""
looks = st.lists(st.tuples(slow, quick, quick), min_size=5, max_size=30)
"""Pause before each, the time until the store reads, and the time until its answer is there."""


@given(renewals=renewals, looks=looks, skew=st.floats(-1e6, 1e6))
@settings(max_examples=150, deadline=None)
def test_holder_stops_before_an_observer_takes_the_lease(
    renewals: list[tuple[float, float, float]],
    looks: list[tuple[float, float, float]],
    skew: float,
) -> None:
    """KCL counts from the answer, and may overlap by a round trip; ours counts from before it was sent."""
    written, deadline = _written(renewals)
    memory: dict[str, Memory] = {}
    now = 0.0
    for pause, on_its_way, back in looks:
        began = now + pause
        read = began + on_its_way
        now = read + back
        found = [lease for at, lease in written if at <= read][-1]
        look = LeaseScan(found=(found,), began_seconds=began + skew, ended_seconds=now + skew)

        seen = outlook(memory, look, OBSERVER, held=())

        memory = dict(seen.memory)
        if seen.leases[0].held_by is None:
            assert now >= deadline - 1e-3  # What is left of seconds beside a skew of days.


def _written(
    renewals: list[tuple[float, float, float]],
) -> tuple[list[tuple[float, Versioned]], float]:
    """Return when the store had which lease, and until when its holder acts."""
    record = LeaseRecord(key="a", owner="w1", epoch=1)
    written = [(0.0, _versioned(record))]
    sent, deadline = 0.0, LEASE_SECONDS
    for pause, on_its_way, back in renewals:
        sent += pause
        if sent >= deadline:
            break
        record = rules.renew(record)
        written.append((sent + on_its_way, _versioned(record)))
        answered = sent + on_its_way + back
        if answered < deadline:
            deadline = sent + LEASE_SECONDS
        sent = answered
    return written, deadline


def _versioned(record: LeaseRecord) -> Versioned:
    return Versioned(record=record, version=Version(str(record.counter)), fence=2)


def test_first_look_takes_every_holder_for_alive() -> None:
    """KCL testNotTakeNewOwnedLease: an observer that was just started has seen nobody stand still."""
    look = LeaseScan(
        found=(_versioned(LeaseRecord(key="a", owner="w1", epoch=1)),),
        began_seconds=1e9,
        ended_seconds=1e9,
    )

    seen = outlook({}, look, OBSERVER, held=())

    assert seen.leases[0].held_by == "w1"
    assert seen.memory["a"].sighting == LastSeen(epoch=1, counter=0, moved_monotonic_seconds=1e9)
