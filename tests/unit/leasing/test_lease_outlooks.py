"""What a worker makes of its looks: what is due to it, what is free, and what was asked for.

Origins are in awslabs/amazon-kinesis-client, packages `leases.dynamodb` and `leases`; rewritten.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from broadsheet.leases import rules
from broadsheet.leases.position import SHARD_END, Position
from broadsheet.leases.record import LeaseRecord, Version, Versioned
from broadsheet.leases.worker.lease_view import LeaseScan, Memory, Viewer, WorkerView, outlook

D = 10.0
ASKING = 40.0


def _found(record: LeaseRecord) -> Versioned:
    fence = 0 if record.holder is None else record.epoch + 1
    return Versioned(record=record, version=Version(str(record.counter)), fence=fence)


class Looks:
    """A worker that looks now and then."""

    def __init__(self, *, tells: bool = False) -> None:
        self._observer = Viewer(
            me="w1", lease_seconds=D, asking_seconds=ASKING, store_tells_who_lives=tells
        )
        self._memory: dict[str, Memory] = {}

    def look(
        self,
        *records: LeaseRecord,
        at: float,
        takes_seconds: float = 0.0,
        held: Collection[str] = (),
    ) -> WorkerView:
        """Look at a time, for a while."""
        look = LeaseScan(
            found=tuple(_found(record) for record in records),
            began_seconds=at,
            ended_seconds=at + takes_seconds,
        )
        seen = outlook(self._memory, look, self._observer, held=held)
        self._memory = dict(seen.memory)
        return seen


MINE = LeaseRecord(key="a", owner="w1", epoch=1, counter=3, checkpoint=Position("7"))
THEIRS = replace(MINE, owner="w2")


@pytest.mark.parametrize("tells", [False, True])
def test_own_leases_are_due_at_the_start(tells: bool) -> None:
    """`testInitialize`, `testTakeOwnLease`: what names this worker is taken at once, unless it processes it."""
    assert Looks(tells=tells).look(MINE, at=0).due == ("a",)
    assert Looks(tells=tells).look(MINE, at=0, held={"a"}).due == ()
    assert Looks(tells=tells).look(THEIRS, at=0).due == ()


def test_leases_in_hand_off_are_not_adopted() -> None:
    """`testInitializeSkipsPendingCheckpointLeases`: neither those that another gets, nor, yet, those from another."""
    passing_on = rules.begin_hand_off(MINE, "w2")
    promised = rules.begin_hand_off(THEIRS, "w1")

    assert Looks().look(passing_on, at=0).due == ()
    looks = Looks()
    seen = looks.look(promised, at=0)
    assert (seen.due, seen.is_asking) == ((), True)
    assert seen.leases[0].bound_for == "w1"


def test_handed_off_lease_is_due_when_its_holder_has_had_its_time() -> None:
    """`isEligibleForGracefulShutdown`, `blockedOnPendingCheckpoint`: until then its holder may checkpoint."""
    looks = Looks()
    promised = rules.begin_hand_off(THEIRS, "w1")
    looks.look(promised, at=0)
    for at in (9.0, 18.0, 27.0, 36.0):
        promised = rules.renew(promised)
        assert looks.look(promised, at=at).due == ()

    assert looks.look(rules.renew(promised), at=ASKING).due == ()
    assert looks.look(rules.renew(promised), at=ASKING + 0.1).due == ("a",)


def test_handed_off_lease_of_a_dead_holder_is_due_when_it_is_free() -> None:
    """`isAvailable` of one in hand-off: who holds it is its old owner, and by that it lives or not."""
    looks = Looks()
    promised = rules.begin_hand_off(THEIRS, "w1")
    looks.look(promised, at=0)

    assert looks.look(promised, at=D).due == ()
    assert looks.look(promised, at=D + 0.1).due == ("a",)


def test_lease_that_was_promised_to_another_is_left_to_it_for_a_while() -> None:
    """Also when its holder dies; then it is anybody's, for the other may have died too."""
    looks = Looks()
    promised = rules.begin_hand_off(THEIRS, "w3")
    looks.look(promised, at=0)

    early = looks.look(promised, at=D + 1).leases[0]
    assert (early.bound_for, early.held_by) == ("w3", None)
    late = looks.look(promised, at=ASKING + 1).leases[0]
    assert (late.bound_for, late.held_by) == (None, None)


def test_slow_look_does_not_age_what_it_shows() -> None:
    """`testSlowGetAllLeases`: a look of 15 s may show what has moved since; a lease lasts from its end on."""
    looks = Looks()
    looks.look(THEIRS, at=0, takes_seconds=15.0)

    assert looks.look(THEIRS, at=15.0 + D, takes_seconds=15.0).leases[0].held_by == "w2"
    assert looks.look(THEIRS, at=15.1 + D).leases[0].held_by is None


def test_lease_that_moves_in_a_slow_look_lives() -> None:
    """The second look begins a length after the first, and shows another counter."""
    looks = Looks()
    looks.look(THEIRS, at=0)

    assert looks.look(rules.renew(THEIRS), at=D + 1, takes_seconds=15.0).leases[0].held_by == "w2"
    assert looks.look(rules.renew(THEIRS), at=D + 1 + 15).leases[0].held_by == "w2"


def test_free_lease_ages_from_when_it_was_seen_free() -> None:
    """`veryOld` of rows that nobody ever owned, and of expired ones: what counts is what this worker saw."""
    looks = Looks()
    nobodys = LeaseRecord(key="b", checkpoint=Position("TRIM_HORIZON"))
    looks.look(THEIRS, nobodys, at=0)
    looks.look(THEIRS, nobodys, at=20)

    theirs, free = looks.look(THEIRS, nobodys, at=35).leases

    assert (theirs.held_by, theirs.free_seconds) == (None, 15.0)
    assert (free.held_by, free.free_seconds) == (None, 35.0)


def test_finished_leases_are_nobodys_concern() -> None:
    """The Kinesis Client Library counts and takes them; here neither, not even one's own."""
    finished = replace(MINE, checkpoint=Position(SHARD_END))

    seen = Looks().look(finished, at=0)

    assert (seen.leases, seen.due) == ((), ())


def test_lease_that_is_gone_is_forgotten() -> None:
    """`testGetAllLeases`: what a look does not show is not remembered, so that its successor is new."""
    looks = Looks()
    looks.look(THEIRS, at=0)
    assert looks.look(at=5).memory == {}

    assert looks.look(THEIRS, at=D + 1).leases[0].held_by == "w2"
