"""One pass from where the cluster is towards where it should be, as transactions.

Each item's step is one checkpoint: all of it happens, or none. Checkpoints of different items are independent of each
other, so one that is refused (somebody else wrote the key) costs the others nothing.

    add      compares  item unchanged, member unchanged, key absent     puts an empty value on the member's lease
    remove   compares  item unchanged, all assignments unchanged        deletes
    move     compares  assignment unchanged, new key absent             deletes, puts value and lease at the new slot
    dead     compares  item absent, assignment unchanged                deletes

Source: gazette/core allocator/alloc_run.go (converge, removal of dead assignments) and item_state.go (operations).
Ours: adds also compare the item and the new key, moves the new key, and removals the replicas that stay: they are why
the removal is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from allocator.core.consistency import Consistency
from allocator.core.keys import Keys
from allocator.core.model import Assignment, ItemId
from allocator.core.ops import Compare, Delete, Operation, Put, TxnCheckpoint
from allocator.core.placement.problem import Desired
from allocator.core.state import PRIMARY_SLOT, AllocState
from allocator.core.transition.item_state import Add, ItemDecision, Move, decide_item

DEAD_PER_CHECKPOINT_MAX = 64
"""Dead assignments deleted at once: half of etcd's limit on operations, which leaves room for fixed comparisons."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many replicas a step touches, by what happens to them."""

    added: int = 0
    removed: int = 0
    promoted: int = 0
    packed: int = 0
    """Moved to another slot than 0."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.added + other.added,
            self.removed + other.removed,
            self.promoted + other.promoted,
            self.packed + other.packed,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One checkpoint and what it does."""

    checkpoint: TxnCheckpoint
    tally: Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Everything that can be done now."""

    steps: tuple[Step, ...]
    """In order of item ids."""
    adds_blocked: int
    """Additions that wait for room on their member."""
    removes_blocked: int
    """Removals that wait for replacements to become consistent."""

    @property
    def checkpoints(self) -> tuple[TxnCheckpoint, ...]:
        """The transactions to perform, in any order."""
        return tuple(step.checkpoint for step in self.steps)

    @property
    def tally(self) -> Tally:
        """What all of it does."""
        return sum((step.tally for step in self.steps), Tally())


def converge(
    state: AllocState, desired: Desired, *, consistency: Consistency, keys: Keys
) -> Convergence:
    """Return the next step of every item towards the desired placement.

    Args:
        state: The snapshot to decide on.
        desired: Members by item; an item it does not know is left alone, for it is newer than the plan.
        consistency: Tells which replicas may be relied upon.
        keys: The syntax of this root.
    """
    steps: list[Step] = []
    loads = state.loads
    adds_blocked = removes_blocked = 0
    for item_id, item in state.items.items():
        if item_id not in desired:
            continue
        decision = decide_item(
            state, item, desired=desired[item_id], loads=loads, consistency=consistency
        )
        loads = decision.loads_after(loads)
        adds_blocked += decision.adds_blocked
        removes_blocked += decision.removes_blocked
        if not decision.is_idle:
            steps.append(_step(state, decision, keys))
    dead = (
        item_id
        for item_id in state.assignments
        if item_id not in state.items and item_id not in state.unreadable_items
    )
    return Convergence(
        steps=tuple(chain(*(_dead_steps(state, item_id, keys) for item_id in dead), steps)),
        adds_blocked=adds_blocked,
        removes_blocked=removes_blocked,
    )


def _step(state: AllocState, decision: ItemDecision, keys: Keys) -> Step:
    item = decision.item
    compares: list[Compare] = []
    operations: list[Operation] = []
    if decision.adds or decision.removes:
        compares.append(Compare.mod_revision(item.kv.key, item.kv.mod_revision))
    if decision.removes:
        compares += map(_unchanged, decision.keeps)
    parts: Iterable[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = chain(
        (_add(state, item.item_id, add, keys) for add in decision.adds),
        (_remove(assignment) for assignment in decision.removes),
        (_move(move, keys) for move in decision.moves),
    )
    for more_compares, more_operations in parts:
        compares += more_compares
        operations += more_operations
    promoted = sum(move.slot == PRIMARY_SLOT for move in decision.moves)
    return Step(
        TxnCheckpoint(tuple(dict.fromkeys(compares)), tuple(operations), subject=item.item_id),
        Tally(
            added=len(decision.adds),
            removed=len(decision.removes),
            promoted=promoted,
            packed=len(decision.moves) - promoted,
        ),
    )


def _unchanged(assignment: Assignment) -> Compare:
    return Compare.mod_revision(assignment.kv.key, assignment.kv.mod_revision)


def _add(
    state: AllocState, item_id: ItemId, add: Add, keys: Keys
) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    member = state.members[add.member_id].kv
    key = keys.assignment(item_id, add.member_id, add.slot)
    # The assignment rides on its member's lease, so that both vanish in one revision when the member dies.
    return (
        (Compare.mod_revision(member.key, member.mod_revision), Compare.absent(key)),
        (Put(key, b"", lease=member.lease),),
    )


def _remove(assignment: Assignment) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    return (_unchanged(assignment),), (Delete(assignment.kv.key),)


def _move(move: Move, keys: Keys) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    assignment = move.assignment
    key = keys.assignment(assignment.item_id, assignment.member_id, move.slot)
    return (
        (_unchanged(assignment), Compare.absent(key)),
        (
            Delete(assignment.kv.key),
            Put(key, assignment.kv.value, lease=assignment.kv.lease),
        ),
    )


def _dead_steps(state: AllocState, item_id: ItemId, keys: Keys) -> Iterator[Step]:
    """Yield the deletion of assignments whose item is gone. Nothing depends on them: no gate."""
    dead = state.assignments[item_id]
    for start in range(0, len(dead), DEAD_PER_CHECKPOINT_MAX):
        group = dead[start : start + DEAD_PER_CHECKPOINT_MAX]
        yield Step(
            TxnCheckpoint(
                (Compare.absent(keys.item(item_id)), *map(_unchanged, group)),
                tuple(Delete(assignment.kv.key) for assignment in group),
                subject=item_id,
            ),
            Tally(removed=len(group)),
        )
