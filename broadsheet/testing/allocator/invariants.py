"""Invariants of every run: checked at every revision, and when the cluster is at rest.

    I0  a member ends only for expected reasons, and does end when it is told to; it follows its own decisions; no
        error goes unhandled
    I1  an item has at most one primary; no member twice by a leader's doing, nor a slot twice in one step or at rest;
        a primary is not removed without another in the same step, and one that serves hands over and stays
    I2  nothing is added to a member at its effective limit; one replica more, one at a time, to break a cycle
    I3  a leader's write leaves no fewer consistent replicas than an item wants (or had), nor fewer zones than it had
        and its plan has
    I4  at rest, items have as many replicas and span as many zones as the members' limits allow
    I5  the cluster comes to rest in a bounded time after the last fault
    I6  a state at rest is a fixed point: no write, and a new plan moves nothing
    I9  only the leader in force allocates, and only what it decided in its present term

I7 and I8 (one writer per fence token, checkpoints that never go back) are invariants of an application, whose
`Invariant`s go into `ClusterScenario.invariants`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.problem import Desired, Problem, Solver, usable, zones_spanned
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT
from broadsheet.testing.allocator.kernel.run import InvariantViolation
from broadsheet.testing.allocator.member import Note
from broadsheet.testing.allocator.world import (
    ClusterChange,
    Replicas,
    SimulatedReplica,
    StoredCluster,
)

OVERCOMMIT_MAX = 1
"""Replicas above their members' limits, over the whole cluster, that breaking a cycle may take."""


class Invariant(Protocol):
    """A property of every run."""

    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        """Check a revision.

        Args:
            world: The cluster after it.
            change: The changes of the revision.
        """
        ...

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        """Check the cluster once it is at rest."""
        ...


class Primaries:
    """Invariant I1."""

    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        """Check each item that changed."""
        revision = change.commit.revision
        for item_id, after in change.after.items():
            before = change.before[item_id]
            if _primaries(after) > 1:
                yield InvariantViolation(
                    "I1", f"{item_id} has {_primaries(after)} primaries", revision
                )
            if not change.is_allocation:
                continue
            wanted = world.items[item_id].replication if item_id in world.items else 0
            unserved = _primaries(before) and not _primaries(after)
            if wanted and unserved and _live(world, after):
                yield InvariantViolation("I1", f"{item_id} lost its primary to a step", revision)
            elif wanted and (
                gone := _served(world, before) - {r.member_id for r in after.values()}
            ):
                problem = f"{item_id} lost its primary on {min(gone)}, which had not handed over"
                yield InvariantViolation("I1", problem, revision)
            was, now = _live(world, before), _live(world, after)
            written = [replica.slot for key, replica in after.items() if key not in before]
            if _repeated(written):
                yield InvariantViolation("I1", f"{item_id} is given a slot twice", revision)
            if _repeated([r.member_id for r in now]) > _repeated([r.member_id for r in was]):
                yield InvariantViolation("I1", f"{item_id} has a member twice", revision)

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        """Check that every item with replicas has a primary, slots without gaps, and no replica of a missing member."""
        for item_id, replicas in sorted(world.replicas.items()):
            live = _live(world, replicas)
            slots = sorted(replica.slot for replica in replicas.values())
            if len(live) == len(replicas) and slots != list(range(len(slots))):
                yield InvariantViolation("I1", f"{item_id} rests with slots {slots}")
            if len(live) < len(replicas) and any(replica.is_consistent for replica in live):
                yield InvariantViolation(
                    "I1", f"{item_id} rests with replicas of members that are gone"
                )


@dataclass
class LimitInvariant:
    """Invariant I2."""

    overcommitted: set[MemberId] = field(default_factory=set)
    """Members that a leader's step took above their limits."""

    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        """Check each addition."""
        if not change.is_allocation:
            return
        loads = world.loads()
        self.overcommitted = {
            m for m in self.overcommitted if m in world.members and loads[m] > _limit(world, m)
        }
        planned = _note(change).planned
        # As the leader knew them when it wrote: a member may have announced another limit since.
        limits = {m.member_id: m.limit for m in planned.problem.members} if planned else {}
        added = [
            m for item_id in change.after if item_id in world.items for m in change.added(item_id)
        ]
        for member_id in dict.fromkeys(added):
            if member_id not in world.members:
                yield InvariantViolation("I2", f"{member_id} is no member", change.commit.revision)
                continue
            limit = limits.get(member_id, _limit(world, member_id))
            over = loads[member_id] - limit
            if over <= 0:
                continue
            self.overcommitted.add(member_id)
            if over > OVERCOMMIT_MAX or len(self.overcommitted) > OVERCOMMIT_MAX:
                yield InvariantViolation(
                    "I2",
                    f"{member_id} was given a replica and holds {loads[member_id]}, its limit is {limit}",
                    change.commit.revision,
                )

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        """Check that no overcommitment by a leader remains."""
        loads = world.loads()
        for member_id in sorted(self.overcommitted & world.members.keys()):
            if loads[member_id] > _limit(world, member_id):
                yield InvariantViolation("I2", f"{member_id} rests above its limit")


class Safety:
    """Invariant I3."""

    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        """Check each item that a leader changed."""
        if not change.is_allocation:
            return
        for item_id, after in change.after.items():
            item = world.items.get(item_id)
            if item is None or not item.replication:
                continue
            yield from self._judge(world, change, item_id, item.replication, after.values())

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        """Check nothing beyond I4."""
        return ()

    def _judge(
        self,
        world: StoredCluster,
        change: ClusterChange,
        item_id: ItemId,
        replication: int,
        after: Iterable[SimulatedReplica],
    ) -> Iterable[InvariantViolation]:
        was = _consistent(world, change.before[item_id].values())
        now = _consistent(world, after)
        revision = change.commit.revision
        if len(now) < min(replication, len(was)):
            problem = f"{item_id} wants {replication} replicas; {len(was)} were consistent, {len(now)} are left"
            yield InvariantViolation("I3", problem, revision)
        planned = _note(change).planned
        desired = planned.desired.get(item_id, ()) if planned else ()
        zones_wanted = min(replication, _zones(desired))
        if _zones(now) < min(zones_wanted, _zones(was)):
            problem = f"{item_id} spanned {_zones(was)} zones, now {_zones(now)}"
            yield InvariantViolation("I3", problem, revision)


class LeadershipInvariant:
    """Invariant I9."""

    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        """Check the writer, and the leadership that decided the write."""
        if not change.is_allocation:
            return
        author, revision = change.commit.author, change.commit.revision
        if author not in map(str, world.members):
            yield InvariantViolation("I9", f"{author} allocates, and is no member", revision)
        if world.epoch is None or world.epoch.member != author:
            yield InvariantViolation("I9", f"{author} allocates in {world.epoch}", revision)
            return
        if not world.epochs_grow:
            yield InvariantViolation("I9", f"epoch {world.epoch.epoch} was there before", revision)
        decided_in = _note(change).epoch
        if decided_in not in (None, world.epoch.epoch):
            problem = f"{author} decided in epoch {decided_in} and wrote in {world.epoch.epoch}"
            yield InvariantViolation("I9", problem, revision)

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        """Check that there is a leader."""
        if world.epoch is None or world.epoch.member not in map(str, world.members):
            yield InvariantViolation("I9", f"no member leads: {world.epoch}")


def invariants() -> list[Invariant]:
    """Return new instances of the invariants for every revision."""
    return [Primaries(), LimitInvariant(), Safety(), LeadershipInvariant()]


def _primaries(replicas: Replicas) -> int:
    return sum(replica.slot == PRIMARY_SLOT for replica in replicas.values())


def _served(world: StoredCluster, replicas: Replicas) -> set[MemberId]:
    """Return the existing members that serve the item."""
    return {
        replica.member_id
        for replica in _live(world, replicas)
        if replica.slot == PRIMARY_SLOT and replica.is_consistent
    }


def _live(world: StoredCluster, replicas: Replicas) -> list[SimulatedReplica]:
    """Return the replicas whose members exist."""
    return [replica for replica in replicas.values() if replica.member_id in world.members]


def _repeated(values: list[int] | list[MemberId]) -> int:
    return len(values) - len(set(values))


def _consistent(world: StoredCluster, replicas: Iterable[SimulatedReplica]) -> set[MemberId]:
    """Return members whose replica could take over. A second one on the same member does not count."""
    lowest: dict[MemberId, SimulatedReplica] = {}
    for replica in sorted(replicas, key=lambda replica: replica.slot):
        lowest.setdefault(replica.member_id, replica)
    return {m for m, replica in lowest.items() if replica.is_consistent and m in world.members}


def _zones(members: Iterable[MemberId]) -> int:
    return len({member_id.zone for member_id in members})


def _note(change: ClusterChange) -> Note:
    note = change.commit.note
    return note if isinstance(note, Note) else Note(None, None)


def _limit(world: StoredCluster, member_id: MemberId) -> int:
    return world.members[member_id].limit


ZONES_WANTED = 2
"""A separate constant, because a mistake in the allocator's must be found."""


def check_rest(
    world: StoredCluster, solver: Solver, policy: AllocationPolicy
) -> Iterable[InvariantViolation]:
    """Check I4 and I6 of a cluster that has not changed for long, and that no change waits.

    Args:
        world: The cluster.
        solver: The members' solver; the built-in one determines what their limits allow.
        policy: The members' policy.
    """
    problem = world.state().problem()
    placed = _placement(world)
    best = FlowSolver().solve(problem)
    for dead in sorted(world.replicas.keys() - world.items.keys()):
        yield InvariantViolation("I5", f"{dead} is no item and still has assignments")
    if _is_complete(problem, best):
        yield from _coverage_violations(problem, placed, best)
        yield from _zone_violations(problem, placed)
        if not (policy.transition.settle_seconds and any(m.exiting for m in problem.members)):
            # Otherwise balance waits for the leaving members.
            yield from _refused_placement(problem, placed)
            yield from _fixed_point_violations(placed, solver.solve(problem))


def _is_complete(problem: Problem, best: Desired) -> bool:
    """Return whether there is room for every replica.

    Without enough room, the optimum cannot always be reached, because I3 forbids that an item gives up a replica so
    that another item gets its first one.
    """
    usable_members = len(usable(problem.members))
    return all(
        len(best[item.item_id]) == min(item.replication, usable_members) for item in problem.items
    )


def _placement(world: StoredCluster) -> Mapping[ItemId, tuple[MemberId, ...]]:
    return {
        item_id: tuple(sorted(r.member_id for r in world.replicas.get(item_id, {}).values()))
        for item_id in sorted(world.items)
    }


def _coverage_violations(
    problem: Problem, placed: Desired, best: Desired
) -> Iterable[InvariantViolation]:
    """Compare the current coverage with the possible one: per level of replication, and in items within one zone."""
    deepest = max((item.replication for item in problem.items), default=0)
    for level in range(1, deepest + 1):
        is_there = sum(len(members) >= level for members in placed.values())
        could_be = sum(len(members) >= level for members in best.values())
        if is_there < could_be:
            problem_text = f"{is_there} items have {level} replicas, {could_be} could"
            yield InvariantViolation("I4", problem_text)
            return
    if _in_one_zone(placed) > _in_one_zone(best):
        items = [i for i, members in placed.items() if _is_in_one_zone(members)]
        yield InvariantViolation("I4", f"{', '.join(items)} are in one zone; fewer could be")


def _refused_placement(problem: Problem, placed: Desired) -> Iterable[InvariantViolation]:
    """Use the independent verifier, which does not depend on solvers."""
    for found in verify(problem, placed):
        # A replica that stays on an exiting member because it has no other place is current, and so not a violation.
        yield InvariantViolation("I4", str(found))


def _zone_violations(problem: Problem, placed: Desired) -> Iterable[InvariantViolation]:
    """Find items in one zone for which a member elsewhere has room: the simplest improvement."""
    loads = Counter(m for members in placed.values() for m in members)
    roomy = [
        member.member_id
        for member in problem.members
        if loads[member.member_id] < member.limit and not member.closed
    ]
    for item in problem.items:
        members = placed[item.item_id]
        zones = {member_id.zone for member_id in members}
        elsewhere = [str(member_id) for member_id in roomy if member_id.zone not in zones]
        if len(members) > 1 and len(zones) == 1 and elsewhere:
            yield InvariantViolation("I4", f"{item.item_id} is in {zones}, {elsewhere[0]} has room")


def _fixed_point_violations(placed: Desired, plan: Desired) -> Iterable[InvariantViolation]:
    for item_id, members in placed.items():
        if members != plan.get(item_id):
            shown = " ".join(map(str, members)) or "nowhere"
            planned = " ".join(map(str, plan.get(item_id, ()))) or "nowhere"
            yield InvariantViolation(
                "I6", f"{item_id} rests on {shown}; a new plan has it on {planned}"
            )


def _in_one_zone(placement: Desired) -> int:
    return sum(map(_is_in_one_zone, placement.values()))


def _is_in_one_zone(members: tuple[MemberId, ...]) -> bool:
    return len(members) >= ZONES_WANTED and zones_spanned(members) < ZONES_WANTED
