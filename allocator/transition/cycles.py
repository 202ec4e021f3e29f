"""Cycles of full members: found in the waits-for graph, broken by one replica over the limit.

    item i should be on t, which is full ──► a replica on t should go; it is item j's, and stays until j's own
    addition on u is done, but u is full ──► … ──► a replica of item i, on a member that an item waits for

Nothing would ever move in such a cycle. One of its additions is made although its member is at its limit. When the new
replica has caught up, the one it replaces frees the place that the next item waits for, and so on around the cycle,
until the member is back at its limit.

Invariants: at most one replica is over the limit, on one member, at a time; and only if waiting cannot help: not while
anything moves that a waiting item depends on, directly or indirectly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.state.alloc_state import AllocState
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason
from broadsheet.allocator.transition.item_step import ItemDecision
from broadsheet.allocator.transition.removals import would_free


@dataclass(frozen=True, slots=True)
class Break:
    """The addition that breaks a cycle."""

    decision: ItemDecision
    """The item's decision so far, which has no step."""
    member_id: MemberId


@dataclass(frozen=True, slots=True)
class _Arc:
    """A waiting item's edge: if it were added on `target`, its replica on `source` could be removed."""

    source: MemberId
    target: MemberId
    decision: ItemDecision

    @property
    def urgency(self) -> tuple[int, str, MemberId]:
        pending = self.decision.pending
        return (pending.risk, pending.item.item_id, self.target)


def find_break(
    state: AllocState,
    decisions: Iterable[ItemDecision],
    *,
    loads: Mapping[MemberId, int],
) -> Break | None:
    """Return the addition that breaks a cycle of items that wait for each other, if only that helps.

    Args:
        state: The snapshot.
        decisions: The decision of every misplaced item.
        loads: Replicas by member, including this pass's additions.
    """
    stuck: list[ItemDecision] = []
    opening: set[MemberId] = set()
    """Members on which something changes by itself."""
    for decision in decisions:
        if _moves_on(decision):
            opening.update(a.member_id for a in decision.removes)
            if decision.hands_over:
                # The former primary's replica is removed in the next step.
                opening.update(m.assignment.member_id for m in decision.moves if m.from_primary)
            opening.update(b.member_id for b in _refused(decision) if b.member_id is not None)
        elif _targets(decision):
            stuck.append(decision)
    stuck, opening = _without_hope(stuck, opening)
    # While a member is over its limit, one cycle is being broken already, and only one may be at a time.
    if not stuck or any(_comes_back(state, m, load, opening) for m, load in loads.items()):
        return None
    at_limit = {m for m, load in loads.items() if load == state.limits[m] and _stays(state, m)}
    arcs = [arc for decision in stuck for arc in _arcs(decision, at_limit)]
    cycle = _cycle(arcs)
    if not cycle:
        return None
    first = min(cycle, key=lambda arc: arc.urgency)
    return Break(first.decision, first.target)


def _moves_on(decision: ItemDecision) -> bool:
    """Return whether the item will change by itself: by a step, a replica that catches up, or a hand-over's turn."""
    return (
        not decision.is_idle
        or any(b.reason is WaitReason.MOVE_BUDGET for b in decision.blocked)
        or bool(decision.pending.replicas.catching_up)
    )


def _targets(decision: ItemDecision) -> list[MemberId]:
    """Return the full members to which an item should be added."""
    return [
        b.member_id
        for b in decision.blocked
        if b.reason is WaitReason.LIMIT
        and b.change is BlockedChange.ADD
        and b.member_id is not None
    ]


def _refused(decision: ItemDecision) -> Iterator[Blocked]:
    return (b for b in decision.blocked if b.change is BlockedChange.REMOVE)


def _without_hope(
    stuck: Sequence[ItemDecision], opening: AbstractSet[MemberId]
) -> tuple[list[ItemDecision], set[MemberId]]:
    """Return items none of whose targets opens, and all members that open, directly or through other items."""
    opens = set(opening)
    waiting: dict[MemberId, list[int]] = {}
    for index, decision in enumerate(stuck):
        for target in _targets(decision):
            waiting.setdefault(target, []).append(index)
    hopeful: set[int] = set()
    frontier = list(opening)
    while frontier:
        for index in waiting.get(frontier.pop(), ()):
            if index in hopeful:
                continue
            hopeful.add(index)
            freed = {b.member_id for b in _refused(stuck[index]) if b.member_id is not None}
            frontier.extend(freed - opens)
            opens |= freed
    hopeless = [decision for index, decision in enumerate(stuck) if index not in hopeful]
    return hopeless, opens


def _comes_back(
    state: AllocState, member_id: MemberId, load: int, opening: Collection[MemberId]
) -> bool:
    """Return whether a member is over its limit and on its way back, so that a cycle is being broken."""
    return load > state.limits[member_id] and _stays(state, member_id) and member_id in opening


def _stays(state: AllocState, member_id: MemberId) -> bool:
    return not state.members[member_id].value.is_exiting()


def _arcs(decision: ItemDecision, at_limit: Collection[MemberId]) -> Iterator[_Arc]:
    replicas = decision.pending.replicas
    held = [
        a for a in replicas.current if a.kv.key in replicas.unwanted and a.member_id in at_limit
    ]
    for target in _targets(decision):
        if target in at_limit:
            for assignment in held:
                if would_free(replicas, assignment, target):
                    yield _Arc(assignment.member_id, target, decision)


def _cycle(arcs: Iterable[_Arc]) -> list[_Arc]:
    """Return arcs that form a cycle, each one's target the next one's source; empty if there is none."""
    leaving: dict[MemberId, list[_Arc]] = {}
    for arc in arcs:
        leaving.setdefault(arc.source, []).append(arc)
    done: set[MemberId] = set()
    for start in sorted(leaving):
        if start not in done and (cycle := _cycle_from(start, leaving, done)):
            return cycle
    return []


def _cycle_from(
    start: MemberId, leaving: Mapping[MemberId, Sequence[_Arc]], done: set[MemberId]
) -> list[_Arc]:
    """Search depth first from one member; finished members lead into no cycle."""
    path: list[_Arc] = []
    position = {start: 0}
    branches = [iter(leaving[start])]
    while branches:
        arc = next(branches[-1], None)
        if arc is None:
            branches.pop()
            member_id = path.pop().target if path else start
            done.add(member_id)
            del position[member_id]
        elif arc.target in position:
            return [*path[position[arc.target] :], arc]
        elif arc.target not in done and arc.target in leaving:
            path.append(arc)
            position[arc.target] = len(path)
            branches.append(iter(leaving[arc.target]))
    return []
