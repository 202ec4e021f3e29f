"""Every invariant can fail: each is shown the very write that it is there to catch, and the one it must let pass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.leader.election import EpochRecord, encoded
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Delete, LeaseId, Operation, Put
from broadsheet.allocator.placement.problem import Problem
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import AllocationPolicy, TransitionPolicy
from broadsheet.testing.allocator import ClusterFault, ClusterScenario, InvariantViolation, simulate
from broadsheet.testing.allocator.invariants import check_rest, invariants
from broadsheet.testing.allocator.kernel.store import SimulatedStore
from broadsheet.testing.allocator.member import Note, Planned
from broadsheet.testing.allocator.values import (
    CONSISTENT,
    SimulatedConsistency,
    SimulatedItem,
    SimulatedMemberValue,
)
from broadsheet.testing.allocator.world import ClusterChange, StoredCluster

KEYS = Keys("/simulated")
ITEM = ItemId("item")
A1, A2, B1, B2 = (MemberId(zone, name) for zone in "ab" for name in ("m1", "m2"))


class Judged:
    """A cluster in a store, of which each write is judged. `a#m1` leads in epoch 1."""

    def __init__(self, *, replication: int = 2, limit: int = 4) -> None:
        self.store = SimulatedStore()
        self.world = StoredCluster(KEYS)
        self.invariants = invariants()
        self.lead(A1, epoch=1)
        self.write("operator", Put(KEYS.item(ITEM), SimulatedItem(replication).encoded()))
        for number, member_id in enumerate((A1, A2, B1, B2), start=1):
            self.store.leases[LeaseId(number)] = set()
            value = SimulatedMemberValue(limit).encoded()
            self.write(str(member_id), Put(KEYS.member(member_id), value, lease=number))

    def lead(self, member_id: MemberId, *, epoch: int) -> None:
        """Write who leads."""
        record = EpochRecord(member=str(member_id), epoch=epoch)
        self.write(str(member_id), Put(AuxiliaryKeys(KEYS.root).epoch, encoded(record)))

    def place(self, *members: MemberId, value: bytes = CONSISTENT) -> None:
        """Put replicas, the first one as primary, as if that had always been so."""
        for slot, member_id in enumerate(members):
            self.write("", Put(KEYS.assignment(ITEM, member_id, slot), value), judge=False)

    def write(
        self, author: str, *operations: Operation, note: object = None, judge: bool = True
    ) -> list[str]:
        """Write, and return the names of the invariants that it breaks."""
        _, _, commit = self.store.perform((), operations, (), author=author, note=note)
        assert commit is not None
        change = self.world.apply(commit)
        return self.violations_of(change) if judge and change is not None else []

    def lead_writes(self, *operations: Operation, note: object = None) -> list[str]:
        """Write as the leader."""
        return self.write(str(A1), *operations, note=note)

    def violations_of(self, change: ClusterChange) -> list[str]:
        """Return the invariants that a change violates."""
        found: list[InvariantViolation] = []
        for invariant in self.invariants:
            found += invariant.on_change(self.world, change)
        return [violation.invariant for violation in found]

    def at_rest(self) -> Iterable[str]:
        """Judge the state at rest."""
        found: list[InvariantViolation] = []
        for invariant in self.invariants:
            found += invariant.at_rest(self.world)
        found += check_rest(
            self.world,
            FlowSolver(),
            AllocationPolicy(transition=TransitionPolicy(settle_seconds=0.0)),
        )
        return {violation.invariant for violation in found}


def _add(member_id: MemberId, slot: int, value: bytes = b"") -> Put:
    return Put(KEYS.assignment(ITEM, member_id, slot), value)


def _remove(member_id: MemberId, slot: int) -> Delete:
    return Delete(KEYS.assignment(ITEM, member_id, slot))


def _plan(*members: MemberId) -> Note:
    return Note(Planned(Problem(members=(), items=()), {ITEM: members}), epoch=1)


class TestPrimaries:
    """I1."""

    def test_second_primary_is_caught(self) -> None:
        """Two members that both serve an item: nothing is worse."""
        judged = Judged()
        judged.place(A1)

        assert "I1" in judged.lead_writes(_add(B1, 0))

    def test_primary_taken_away_without_another_is_caught(self) -> None:
        """A removal of the primary promotes in the same step."""
        judged = Judged(replication=1)
        judged.place(A1, B1)

        assert judged.lead_writes(_remove(A1, 0)) == ["I1"]

    def test_slot_given_to_two_at_once_is_caught(self) -> None:
        """Neither of them goes, so one will have to be renumbered."""
        judged = Judged(replication=3)
        judged.place(A1)

        assert judged.lead_writes(_add(B1, 1), _add(B2, 1)) == ["I1"]

    def test_slot_of_a_standby_that_goes_may_be_its_successors(self) -> None:
        """Until the cluster is at rest; slot 0 never."""
        judged = Judged()
        judged.place(A1, B1)

        assert judged.lead_writes(_add(B2, 1, CONSISTENT)) == []
        assert "I1" in judged.at_rest()
        assert judged.lead_writes(_remove(B1, 1)) == []
        assert "I1" not in judged.at_rest()
        assert judged.lead_writes(_add(A2, 0)) == ["I1"]

    def test_hand_over_in_one_step_passes(self) -> None:
        """They trade slots at once, and the former primary goes later."""
        judged = Judged(replication=1)
        judged.place(A1, B1)
        trade = (
            _remove(A1, 0),
            _add(A1, 1, CONSISTENT),
            _remove(B1, 1),
            _add(B1, 0, CONSISTENT),
        )

        assert judged.lead_writes(*trade) == []
        assert judged.lead_writes(_remove(A1, 1)) == []

    def test_primary_that_goes_without_a_hand_over_is_caught(self) -> None:
        """It served, and is removed in the step that promotes another."""
        judged = Judged(replication=1)
        judged.place(A1, B1)

        found = judged.lead_writes(_remove(A1, 0), _remove(B1, 1), _add(B1, 0, CONSISTENT))

        assert found == ["I1"]

    def test_second_replica_on_a_member_is_caught(self) -> None:
        """It would be counted as a replica, and is none."""
        judged = Judged()
        judged.place(A1)

        assert judged.lead_writes(_add(A1, 1)) == ["I1"]


class TestLimits:
    """I2."""

    def test_one_replica_above_a_limit_passes_and_a_second_is_caught(self) -> None:
        """A cycle may be broken by one overcommitment at a time."""
        judged = Judged(limit=0)

        assert judged.lead_writes(_add(A1, 0)) == []
        assert judged.lead_writes(_add(B1, 1)) == ["I2"]

    def test_replica_for_nobody_is_caught(self) -> None:
        """A member that is gone takes nothing."""
        judged = Judged()

        assert judged.lead_writes(_add(MemberId("a", "gone"), 0)) == ["I2"]


class TestSafety:
    """I3."""

    def test_removal_of_a_replica_that_is_needed_is_caught(self) -> None:
        """Two are wanted, two are consistent: neither may go."""
        judged = Judged(replication=2)
        judged.place(A1, A2)

        assert judged.lead_writes(_remove(A2, 1)) == ["I3"]

    def test_removal_before_the_replacement_has_caught_up_is_caught(self) -> None:
        """A replica that was just made counts for nothing."""
        judged = Judged(replication=1)
        judged.place(A1)
        judged.lead_writes(_add(A2, 1))

        found = judged.lead_writes(_remove(A1, 0), _remove(A2, 1), _add(A2, 0))

        assert found == ["I1", "I3"]

    def test_end_of_a_lease_is_nobodys_doing(self) -> None:
        """What dies is lost; only what we choose is judged."""
        judged = Judged(replication=2)
        judged.write("", Put(KEYS.assignment(ITEM, A1, 0), CONSISTENT, lease=1), judge=False)
        commit = judged.store.end_lease(LeaseId(1))
        assert commit is not None
        change = judged.world.apply(commit)
        assert change is not None

        assert judged.violations_of(change) == []

    def test_loss_of_a_zone_that_the_plan_has_is_caught(self) -> None:
        """Enough replicas are left, all in one zone, where two were and are planned."""
        judged = Judged(replication=2)
        judged.place(A1, A2, B1)

        assert judged.lead_writes(_remove(B1, 2), note=_plan(A1, B1)) == ["I3"]

    def test_loss_of_a_zone_that_the_plan_gives_up_passes(self) -> None:
        """Where capacity forces one zone, the plan says so."""
        judged = Judged(replication=2)
        judged.place(A1, A2, B1)

        assert judged.lead_writes(_remove(B1, 2), note=_plan(A1, A2)) == []


class TestLeadership:
    """I9."""

    def test_write_of_one_who_does_not_lead_is_caught(self) -> None:
        """A superseded leader's late write must have been refused."""
        judged = Judged()
        judged.lead(B1, epoch=2)

        assert judged.lead_writes(_add(A1, 0)) == ["I9"]

    def test_write_decided_in_an_earlier_term_is_caught(self) -> None:
        """The same member leads again: what it decided before is void all the same."""
        judged = Judged()
        judged.lead(A1, epoch=3)

        assert judged.lead_writes(_add(A1, 0), note=_plan(A1)) == ["I9"]


class TestRest:
    """I4, I6, and what else is said of a cluster at rest."""

    def test_rest_as_planned_passes(self) -> None:
        """Two replicas in two zones."""
        judged = Judged()
        judged.place(A1, B1)

        assert judged.at_rest() == set()

    @pytest.mark.parametrize(
        ("members", "caught"),
        [((A1,), "I4"), ((A1, A2), "I4"), ((A1, B1, B2), "I6")],
        ids=["too-few", "one-zone", "too-many"],
    )
    def test_rest_that_could_be_better_is_caught(
        self, members: tuple[MemberId, ...], caught: str
    ) -> None:
        """There is room for all, and the cluster stopped short of it."""
        judged = Judged()
        judged.place(*members)

        assert caught in judged.at_rest()

    def test_rest_with_gaps_between_slots_is_caught(self) -> None:
        """Slots are packed at rest."""
        judged = Judged()
        judged.place(A1)
        judged.write("", _add(B1, 2, CONSISTENT), judge=False)

        assert judged.at_rest() == {"I1"}


class _NoMoreThanTenRevisions:
    """An invariant of a user's own, which does not hold."""

    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        if change.commit.revision > 10:
            yield InvariantViolation("mine", "too many revisions", change.commit.revision)

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        return ()


def test_users_invariant_ends_the_run_and_is_reported() -> None:
    """The seam for an application's claims: the report names the claim, and the last events."""
    scenario = ClusterScenario(invariants=lambda: [_NoMoreThanTenRevisions()])

    report = simulate(2, scenario)

    assert not report.ok
    assert report.violation is not None
    assert report.violation.revision in range(11, 30)
    assert str(report).startswith(f"seed 2: mine at revision {report.violation.revision}: too many")
    assert any("VIOLATION" in line for line in report.recent)


def test_rule_that_is_broken_on_purpose_is_reported_with_the_stories_of_the_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader relies on replicas that have not caught up: the report says what it elected, planned and wrote."""
    monkeypatch.setattr(SimulatedConsistency, "is_consistent", lambda *_: True)

    reports = (simulate(seed) for seed in range(10))
    report = next(report for report in reports if not report.ok)

    assert report.violation is not None
    assert report.violation.invariant == "I3"
    first, *_ = report.stories
    name, election, *_ = first.splitlines()
    assert name.endswith(", alive:")
    assert (
        f"events of the election of {name.removesuffix(', alive:')}, the newest first" in election
    )
    assert "events of the leader's rounds" in first
    rounds = first.partition("the leader's rounds")[2].splitlines()
    # The step that broke the rule is the newest one that the leader knows of.
    assert " steps, " in rounds[1]
    assert report.violation.problem.split()[0] in rounds[1]
    assert str(report).endswith("\n".join(report.stories))


def test_cluster_that_never_rests_is_caught() -> None:
    """I5: a replica that reports after the bound changes the cluster after the bound."""
    scenario = ClusterScenario(
        catch_up_seconds=(20.0, 20.0),
        settle_seconds_max=10.0,
        faults={ClusterFault.ITEM_ADDED: 1.0},
        steps=(1, 1),
        replication=(2, 2),
        limit=(8, 8),
    )

    violation = simulate(1, scenario).violation

    assert violation is not None
    assert violation.invariant == "I5"
