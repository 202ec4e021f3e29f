"""What must hold after each step of ours, told from the cluster before and after it: I1 to I3, and the move budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from broadsheet.allocator.model import Assignment, MemberId
from broadsheet.allocator.placement.problem import Desired, zones_spanned
from broadsheet.allocator.policy import TransitionPolicy
from broadsheet.allocator.state.alloc_state import AllocState

IsConsistent = Callable[[Assignment], bool]


@dataclass
class Overcommits:
    """I2: nothing is added to a member at its limit, but for one replica, on one member at a time, to break a cycle."""

    members: set[MemberId] = field(default_factory=set)
    """Members that a step of ours took above their limits, and that are above them still."""
    count: int = 0
    """How many there have been."""

    def forget(self) -> None:
        """Limits changed: who is above them now is nobody's doing."""
        self.members.clear()

    def check(self, before: AllocState, after: AllocState) -> None:
        """Judge a step."""
        loads = after.loads.total
        self.members = {m for m in self.members if m in loads and loads[m] > after.limits[m]}
        for member_id, load in loads.items():
            limit = before.limits[member_id]
            if load <= max(limit, before.loads.total[member_id]):
                continue
            assert load == limit + 1, f"I2: {member_id} holds {load}, its limit is {limit}"
            self.members.add(member_id)
            self.count += 1
        assert len(self.members) <= 1, f"I2: {self.members} are above their limits at a time"


def check_step(
    before: AllocState, after: AllocState, desired: Desired, *, is_consistent: IsConsistent
) -> None:
    """Assert one primary, no replica or zone lost by us, nothing on a member that leaves."""
    for item_id, item in after.items.items():
        old = before.assignments.get(item_id, ())
        new = after.assignments.get(item_id, ())
        if old == new:
            continue
        primaries_before = sum(a.slot == 0 for a in old)
        assert sum(a.slot == 0 for a in new) <= max(1, primaries_before), f"I1: {item_id}"
        assert not primaries_before or not new or any(a.slot == 0 for a in new), f"I1: {item_id}"
        staying = desired.get(item_id, ())
        slots = [a.slot for a in new if a.member_id in staying]
        assert len(set(slots)) == len(slots) or len({a.slot for a in old}) < len(old)
        wanted = item.value.desired_replication()
        was = consistent_members(before, old, is_consistent)
        now = consistent_members(after, new, is_consistent)
        assert len(now) >= min(wanted, len(was)), f"I3: {item_id} lost a replica it needs"
        if wanted:
            attainable = zones_spanned(m for m in desired.get(item_id, ()) if m in after.members)
            kept = min(attainable, zones_spanned(was))
            assert zones_spanned(now) >= kept, f"I3: {item_id} lost a zone"
        for added in {a.member_id for a in new} - {a.member_id for a in old}:
            value = after.members[added].value
            assert not value.is_exiting(), f"{item_id} came to leaving {added}"
            assert not value.is_cordoned(), f"{item_id} came to cordoned {added}"
        _check_election(before, old, new, is_consistent, staying=staying)
        for primary in old:
            serves = primary.slot == 0 and primary.member_id in was and is_consistent(primary)
            if wanted and serves and primary.member_id not in {a.member_id for a in new}:
                raise AssertionError(f"I1: {item_id} lost a primary that did not hand over")


def _check_election(
    state: AllocState,
    old: Iterable[Assignment],
    new: Iterable[Assignment],
    is_consistent: IsConsistent,
    *,
    staying: Collection[MemberId],
) -> None:
    """Assert that of consistent replicas none on a leaving member was elected while another that stays could be."""
    before = {a.member_id: a for a in old}
    for elected in new:
        known = before.get(elected.member_id)
        if elected.slot != 0 or known is None or known.slot == 0 or not is_consistent(elected):
            continue
        if state.is_leaving(elected.member_id):
            # One that the plan does not keep is no choice: it is removed next, and its member may be needed by others.
            others = [
                a
                for a in new
                if is_consistent(a) and not state.is_leaving(a.member_id) and a.member_id in staying
            ]
            assert not others, f"{elected.member_id} leaves, and was elected"


def check_budget(
    before: AllocState, after: AllocState, policy: TransitionPolicy, *, is_consistent: IsConsistent
) -> None:
    """Assert that no move was begun beyond what may be in flight."""
    if policy.moves_max:
        moves_before, moves = _moves(before, is_consistent), _moves(after, is_consistent)
        assert moves.total() <= max(policy.moves_max, moves_before.total()), "too many moves"
    if policy.moves_per_member_max:
        moves_before, moves = _moves(before, is_consistent), _moves(after, is_consistent)
        for member_id, count in moves.items():
            allowed = max(policy.moves_per_member_max, moves_before[member_id])
            assert count <= allowed, f"too many moves to {member_id}"


def _moves(state: AllocState, is_consistent: IsConsistent) -> Counter[MemberId]:
    """Count replicas that catch up on a member while the item has all that it wants besides."""
    moves: Counter[MemberId] = Counter()
    for item_id, item in state.items.items():
        live = [
            a
            for a in state.assignments.get(item_id, ())
            if a.member_id in state.members and (item_id, a.member_id) not in state.avoided
        ]
        behind = [a.member_id for a in live if not is_consistent(a)]
        if len({a.member_id for a in live}) - len(behind) >= item.value.desired_replication():
            moves.update(behind)
    return moves


def consistent_members(
    state: AllocState, assignments: Iterable[Assignment], is_consistent: IsConsistent
) -> set[MemberId]:
    """Return members that could take over. A second assignment on one member is not legal, and worth nothing."""
    lowest: dict[MemberId, Assignment] = {}
    for assignment in sorted(assignments, key=lambda a: a.slot):
        lowest.setdefault(assignment.member_id, assignment)
    return {
        member_id
        for member_id, assignment in lowest.items()
        if is_consistent(assignment) and member_id in state.members
    }
