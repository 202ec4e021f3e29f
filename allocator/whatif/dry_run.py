"""Simulation of a plan on a cluster in memory: its state, its changes, and the remaining work.

Invariants: a step takes time for its item only, and a look at the pending items for those only; only `whole` takes time
for everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from broadsheet.allocator.keys import AssignmentKey, Keys
from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.ops import Delete, KeyValue, Put
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.placement.primaries import HandOver, wanted_hand_overs
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState, Loads
from broadsheet.allocator.transition.capacity import Blocked
from broadsheet.allocator.transition.converge import Convergence, ConvergeStep, converge
from broadsheet.allocator.transition.membership_settling import Settling
from broadsheet.allocator.transition.replicas import is_settled
from broadsheet.allocator.transition.schedule import Targets
from broadsheet.allocator.whatif.leader_snapshot import LeaderSnapshot


class ReplicaChangeKind(Enum):
    """Kind of a replica's change, in the terms of plans."""

    ADD = "add"
    REMOVE = "remove"
    PROMOTE = "promote"
    HAND_OVER = "hand-over"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """One change that a plan makes."""

    round: int
    """The pass of the schedule, from 0; between two passes replicas catch up."""
    kind: ReplicaChangeKind
    item_id: ItemId
    member_id: MemberId
    """The member that gets the replica, loses it, or becomes primary."""
    from_member: MemberId | None = None
    """The former primary, of a promotion or hand-over."""
    cold: bool = False
    """The new primary has not caught up yet: the item is not served in the meantime."""


def replica_changes(
    number: int,
    item_id: ItemId,
    old: Sequence[Assignment],
    new: Sequence[Assignment],
    *,
    behind: Container[tuple[ItemId, MemberId]] = (),
) -> Iterator[ReplicaChange]:
    """Yield the changes of an item's replicas.

    Args:
        number: The pass of the schedule.
        item_id: The item.
        old: Its assignments before.
        new: Its assignments after.
        behind: Replicas that have not caught up yet.
    """
    had, has = {a.member_id for a in old}, {a.member_id for a in new}
    was, now = _primary(old), _primary(new)
    for member_id in sorted(has - had):
        yield ReplicaChange(
            round=number, kind=ReplicaChangeKind.ADD, item_id=item_id, member_id=member_id
        )
    for member_id in sorted(had - has):
        yield ReplicaChange(
            round=number, kind=ReplicaChangeKind.REMOVE, item_id=item_id, member_id=member_id
        )
    if now is not None and now != was and now in had:
        yield ReplicaChange(
            round=number,
            kind=ReplicaChangeKind.HAND_OVER if was in has else ReplicaChangeKind.PROMOTE,
            item_id=item_id,
            member_id=now,
            from_member=was,
            cold=(item_id, now) in behind,
        )


def _primary(group: Sequence[Assignment]) -> MemberId | None:
    return next((a.member_id for a in group if a.slot == PRIMARY_SLOT), None)


class _Behind:
    """Treats replicas as consistent except those that have not caught up yet."""

    def __init__(self, replicas: set[tuple[ItemId, MemberId]]) -> None:
        self.replicas = replicas

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        return (item.item_id, assignment.member_id) not in self.replicas

    def standby_value(self, primary: Assignment) -> bytes:
        # The dry run does not read values: it follows which replicas have caught up.
        return primary.kv.value


class Sandbox:
    """The cluster during a dry run, and the changes so far."""

    def __init__(
        self, state: AllocState, plan: Plan, leader: LeaderSnapshot, *, settling: Settling
    ) -> None:
        self._state = state
        self._plan = plan
        self._keys = leader.keys
        self._policy = leader.policy
        self._settling = settling
        self._groups = dict(state.assignments)
        self._total, self._primary = dict(state.loads.total), dict(state.loads.primary)
        self._revision = state.revision
        self._behind = _Behind(
            {
                (item_id, a.member_id)
                for item_id, group in state.assignments.items()
                if (item := state.items.get(item_id)) is not None
                for a in group
                if not leader.consistency.is_consistent(item, a, group)
            }
        )
        self._lagging = set(state.lags)
        """Standbys that could serve, but have much of their log to replay first."""
        everything = state.items.keys() | state.assignments.keys()
        self._pending = {item_id for item_id in everything if not self._is_done(item_id)}
        self._hand_overs: list[HandOver] = []
        """Hand-overs that were found and not yet tried."""
        self._handed_over = True
        """Whether any of the last found hand-overs took place."""
        self.changes: list[ReplicaChange] = []
        self.round = 0

    def whole(self) -> AllocState:
        """Return the state of everything."""
        return self._seen(sorted(self._state.items), sorted(self._groups), is_whole=True)

    def pending(self) -> AllocState:
        """Return the state of the misplaced items."""
        return self._partial(self._pending)

    def converged(
        self,
        state: AllocState,
        hand_overs: Sequence[HandOver] = (),
        *,
        sees_all_pending: bool = True,
    ) -> Convergence:
        """Return the next steps, and the waiting changes.

        Args:
            state: The whole state, or a part.
            hand_overs: Those to begin now; for the whole state, all wanted ones wait.
            sees_all_pending: Whether the state has every pending item.
        """
        if state.is_whole and self._policy.primaries.hand_over_above_spread:
            hand_overs = self._wanted_hand_overs(state)
        targets = Targets(
            desired=self._plan.desired,
            primaries=self._plan.primaries,
            policy=self._policy.transition,
            drains_waiting=self._settling.drains_waiting,
            hand_overs=hand_overs,
            hand_overs_allowed=0 if state.is_whole else len(hand_overs),
            sees_all_pending=sees_all_pending,
        )
        return converge(state, targets, consistency=self._behind, keys=self._keys)

    def perform(self, steps: Sequence[ConvergeStep]) -> bool:
        """Perform the steps of a round; False if there are none."""
        for step in steps:
            item_id = ItemId(step.checkpoint.subject)
            before = self._groups.get(item_id, ())
            after = performed(before, step, self._keys, self._revision + 1)
            self._count(item_id, before, -1)
            self._count(item_id, after, 1)
            self._note(item_id, before, after)
            if after:
                self._groups[item_id] = after
            else:
                self._groups.pop(item_id, None)
            if self._is_done(item_id):
                self._pending.discard(item_id)
            else:
                self._pending.add(item_id)
        if steps:
            self.round += 1
            self._revision += 1
        return bool(steps)

    def catch_up(self) -> bool:
        """Let every replica catch up; False if all already had."""
        if not self._behind.replicas:
            self._lagging.clear()
            return False
        self._behind.replicas.clear()
        self._lagging.clear()
        return True

    def hand_over(self) -> bool:
        """Hand over as many primaries as may move at a time; False if there are none to hand over."""
        primaries = self._policy.primaries
        if not primaries.hand_over_above_spread:
            return False
        while True:
            if not self._hand_overs:
                if not self._handed_over:
                    return False
                self._hand_overs = list(self._wanted_hand_overs(self.whole()))
                self._handed_over = False
                if not self._hand_overs:
                    return False
            allowed = max(1, primaries.hand_overs_in_flight_max)
            first, self._hand_overs = self._hand_overs[:allowed], self._hand_overs[allowed:]
            # Only these items, because a look at the whole would take time for everything in each round.
            state = self._partial({each.item_id for each in first})
            if self.perform(self.converged(state, first, sees_all_pending=False).steps):
                self._handed_over = True
                return True

    def _wanted_hand_overs(self, whole: AllocState) -> Sequence[HandOver]:
        return wanted_hand_overs(whole.problem(), self._plan.desired, policy=self._policy.primaries)

    def _partial(self, item_ids: Collection[ItemId]) -> AllocState:
        ids = sorted(item_ids)
        return self._seen(ids, ids, is_whole=False)

    def _seen(
        self, item_ids: Sequence[ItemId], grouped: Sequence[ItemId], *, is_whole: bool
    ) -> AllocState:
        items, groups = self._state.items, self._groups
        # Limits depend on members and items, which a step does not change.
        return replace(
            self._state,
            revision=self._revision,
            items={i: items[i] for i in item_ids if i in items},
            assignments={i: groups[i] for i in grouped if i in groups},
            loads=Loads(dict(self._total), dict(self._primary)),
            is_whole=is_whole,
        )

    def _is_done(self, item_id: ItemId) -> bool:
        """Return whether an item needs nothing; items that the plan does not have are left alone."""
        group = self._groups.get(item_id, ())
        if item_id not in self._state.items:
            # An item that cannot be read is not deleted, so it keeps its replicas.
            return not group or item_id in self._state.unreadable_items
        wanted = self._plan.desired.get(item_id)
        return wanted is None or is_settled(group, wanted)

    def _count(self, item_id: ItemId, group: Sequence[Assignment], difference: int) -> None:
        exists = item_id in self._state.items
        for assignment in group:
            if assignment.member_id in self._total:
                self._total[assignment.member_id] += difference
                if exists and assignment.slot == PRIMARY_SLOT:
                    self._primary[assignment.member_id] += difference

    def _note(self, item_id: ItemId, old: Sequence[Assignment], new: Sequence[Assignment]) -> None:
        had = {a.member_id for a in old}
        self._behind.replicas |= {(item_id, a.member_id) for a in new if a.member_id not in had}
        replicas = {(item_id, a.member_id) for a in old}
        behind = {
            each for each in replicas if each in self._behind.replicas or each in self._lagging
        }
        self.changes += replica_changes(self.round, item_id, old, new, behind=behind)


def performed(
    group: Sequence[Assignment], step: ConvergeStep, keys: Keys, revision: int
) -> tuple[Assignment, ...]:
    """Return an item's assignments after its own step."""
    by_key = {a.kv.key: a for a in group}
    by_member = {a.member_id: a for a in group}
    for operation in step.checkpoint.operations:
        if isinstance(operation, Delete):
            by_key.pop(operation.key, None)
        elif isinstance(operation, Put):
            by_key[operation.key] = _made(operation, keys, by_member, revision)
    return tuple(sorted(by_key.values(), key=lambda a: (a.member_id, a.slot)))


def _made(put: Put, keys: Keys, known: Mapping[MemberId, Assignment], revision: int) -> Assignment:
    parsed = keys.parse(put.key)
    assert isinstance(parsed, AssignmentKey), "steps put assignments"
    before = known.get(parsed.member_id)
    return Assignment(
        item_id=parsed.item_id,
        member_id=parsed.member_id,
        slot=parsed.slot,
        value=before.value if before is not None else None,
        kv=KeyValue(
            key=put.key,
            value=put.value,
            create_revision=revision,
            mod_revision=revision,
            version=1,
            lease=put.lease,
        ),
    )


ROUNDS_MAX = 100_000
"""Enough for tens of thousands of moves with a budget of one at a time; a dry run must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The result of a dry run."""

    changes: tuple[ReplicaChange, ...]
    waits: tuple[Blocked, ...]
    """The changes that would wait at first."""
    stuck: tuple[Blocked, ...]
    """The changes that would still wait at the end."""
    final: AllocState


class DryRunAbandonedError(Exception):
    """Raised when the result is not wanted any more."""


def perform_dry_run(
    state: AllocState,
    plan: Plan,
    leader: LeaderSnapshot,
    *,
    settling: Settling,
    is_wanted: Callable[[], bool] = lambda: True,
) -> DryRun:
    """Return the result of carrying out `plan` from `state`.

    Steps are performed in memory as the leader would perform them, to find out what would happen and what would wait.
    Each round performs every step of one convergence. Replicas catch up whenever nothing else can be done; live
    primaries are handed over once everything else is done.

    Invariants: a round takes time for each misplaced item only, so that a drain limited to a few moves at a time can be
    simulated for a large cluster; only the first and the last examination cover everything.

    Args:
        state: The whole state, perhaps a hypothetical one.
        plan: A plan that answers the state's demand.
        leader: The leader's rules, and which replicas are consistent now.
        settling: The state's membership: tells which drains wait.
        is_wanted: Called before each round; False abandons the dry run.

    Raises:
        DryRunAbandonedError: the result is not wanted any more.
    """
    sandbox = Sandbox(state, plan, leader, settling=settling)
    convergence = sandbox.converged(sandbox.whole())
    waits = convergence.blocked
    while sandbox.round < ROUNDS_MAX:
        if not is_wanted():
            raise DryRunAbandonedError
        # In this order: replicas catch up once no step is left, and primaries move once all else is done.
        if not (sandbox.perform(convergence.steps) or sandbox.catch_up() or sandbox.hand_over()):
            break
        convergence = sandbox.converged(sandbox.pending())
    final = sandbox.whole()
    return DryRun(
        changes=tuple(sandbox.changes),
        waits=waits,
        stuck=sandbox.converged(final).blocked,
        final=final,
    )
