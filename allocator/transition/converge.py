"""One pass from the current placement towards the desired one, as transactions.

Each item's step is one checkpoint: all of it happens, or none. Checkpoints of different items are independent of each
other, so one that is refused (another process wrote the key) does not affect the others. They are in order of urgency.

    add        compares  item unchanged, member unchanged, key absent     puts an empty value on the member's lease
                         its siblings still there, and no others
    remove     compares  item unchanged, all assignments unchanged        deletes
    move       compares  assignment unchanged, new key absent             deletes, puts value and lease at the new slot;
                                                                          the value of a standby, if it was the primary
    promote    compares  all assignments unchanged, and no others         a move to slot 0
    hand over  compares  item and all assignments unchanged, and no others,
                         new primary's member unchanged                   two moves
    dead       compares  item absent, assignment unchanged                deletes

Source: gazette/core allocator/alloc_run.go (converge, removal of dead assignments) and item_state.go (operations).
Ours: adds also compare the item and the new key, moves the new key, and removals the replicas that stay, because these
make the removal safe. Adds and promotions compare the siblings, because they depend on them: decided on an outdated
view, they would make a second primary, one replica too many, or a primary of a replica that is behind another. A
sibling that was created after the view has a later revision, and one comparison of the range of the item's keys tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, ItemId
from broadsheet.allocator.ops import Compare, Delete, Operation, Put, TxnCheckpoint
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState, Consistency
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange
from broadsheet.allocator.transition.item_step import Add, ItemDecision
from broadsheet.allocator.transition.schedule import Targets, schedule
from broadsheet.allocator.transition.slots import SlotMove

DEAD_PER_CHECKPOINT_MAX = 64
"""Dead assignments deleted at once: half of etcd's limit on operations, which leaves room for fixed comparisons."""


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Replicas that a step changes, by kind of change."""

    added: int = 0
    removed: int = 0
    promoted: int = 0
    packed: int = 0
    """Moved to another slot than 0."""
    handed_over: int = 0
    """Promoted in place of a live primary, by plan; counted among the promoted, too."""

    @property
    def text(self) -> str:
        """The kinds that are not zero, such as `added 1, promoted 1`."""
        kinds = ("added", "removed", "promoted", "packed", "handed_over")
        return ", ".join(f"{kind} {count}" for kind in kinds if (count := getattr(self, kind)))

    def __add__(self, other: ReplicaCounts) -> ReplicaCounts:
        return ReplicaCounts(
            self.added + other.added,
            self.removed + other.removed,
            self.promoted + other.promoted,
            self.packed + other.packed,
            self.handed_over + other.handed_over,
        )


@dataclass(frozen=True, slots=True)
class ConvergeStep:
    """One checkpoint and its effect."""

    checkpoint: TxnCheckpoint
    counts: ReplicaCounts
    reason: str = ""
    """The risk that the step addresses, for the move log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Every step that can be performed now."""

    steps: tuple[ConvergeStep, ...]
    """Most urgent first, dead assignments last."""
    blocked: tuple[Blocked, ...] = ()
    """Everything that cannot be done now, of the items looked at."""

    @property
    def checkpoints(self) -> tuple[TxnCheckpoint, ...]:
        """The transactions to perform, in any order."""
        return tuple(step.checkpoint for step in self.steps)

    @property
    def counts(self) -> ReplicaCounts:
        """The sum of the steps' effects."""
        return sum((step.counts for step in self.steps), ReplicaCounts())

    @property
    def adds_blocked(self) -> int:
        """Additions that wait."""
        return sum(each.change is BlockedChange.ADD for each in self.blocked)

    @property
    def adds_unplaced(self) -> int:
        """Waiting additions for which even the plan has no place."""
        return sum(
            each.change is BlockedChange.ADD and each.member_id is None for each in self.blocked
        )

    @property
    def removes_blocked(self) -> int:
        """Removals that wait."""
        return sum(each.change is BlockedChange.REMOVE for each in self.blocked)


def converge(
    state: AllocState, targets: Targets, *, consistency: Consistency, keys: Keys
) -> Convergence:
    """Return the next step of every item towards the desired placement.

    Args:
        state: The snapshot to decide on; it may hold only the items that may have something to do.
        targets: The desired placement, and the rules on the way there.
        consistency: Tells which replicas are consistent.
        keys: The syntax of this root.
    """
    scheduled = schedule(state, targets, consistency)
    dead = (
        item_id
        for item_id in state.assignments
        # An item that cannot be decoded exists, so its replicas must stay.
        if item_id not in state.items and item_id not in state.unreadable_items
    )
    return Convergence(
        steps=(
            *(_step(state, decision, consistency, keys) for decision in scheduled.decisions),
            *chain.from_iterable(_dead_steps(state, item_id, keys) for item_id in dead),
        ),
        blocked=scheduled.blocked,
    )


def _step(
    state: AllocState, decision: ItemDecision, consistency: Consistency, keys: Keys
) -> ConvergeStep:
    item = decision.pending.item
    compares: list[Compare] = []
    operations: list[Operation] = []
    # These depend on how many replicas the item wants; packing and promoting what exists do not.
    if decision.adds or decision.removes or decision.hands_over:
        compares.append(Compare.mod_revision(item.kv.key, item.kv.mod_revision))
    compares += _siblings(state, decision, keys)
    if decision.hands_over:
        new = next(move.assignment for move in decision.moves if move.slot == PRIMARY_SLOT)
        # So that the new primary is not on a member that has started to exit meanwhile.
        member = state.members[new.member_id].kv
        compares.append(Compare.mod_revision(member.key, member.mod_revision))
    parts: Iterable[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = chain(
        (_add(state, item.item_id, add, keys) for add in decision.adds),
        (_remove(assignment) for assignment in decision.removes),
        (_move(move, consistency, keys) for move in decision.moves),
    )
    for more_compares, more_operations in parts:
        compares += more_compares
        operations += more_operations
    if decision.moves:
        # The moved replicas are among the kept ones.
        compares = list(dict.fromkeys(compares))
    return ConvergeStep(
        TxnCheckpoint(tuple(compares), tuple(operations), subject=item.item_id),
        _counts_of(decision),
        decision.pending.risk.name.lower().replace("_", "-"),
    )


def _siblings(state: AllocState, decision: ItemDecision, keys: Keys) -> Iterator[Compare]:
    """Yield the comparisons of the remaining replicas that make the step valid."""
    prefix = keys.assignments_of(decision.pending.item.item_id)
    if decision.promotes:
        # Their status counts too, because another replica may have caught up by now.
        yield Compare.none_written_after(prefix, state.revision)
    elif decision.adds:
        yield Compare.none_created_after(prefix, state.revision)
    if decision.removes or decision.promotes:
        yield from map(_unchanged, decision.keeps)
    elif decision.adds:
        for sibling in decision.keeps:
            yield Compare.create_revision(sibling.kv.key, sibling.kv.create_revision)


def _counts_of(decision: ItemDecision) -> ReplicaCounts:
    promoted = sum(move.slot == PRIMARY_SLOT for move in decision.moves)
    return ReplicaCounts(
        added=len(decision.adds),
        removed=len(decision.removes),
        promoted=promoted,
        packed=len(decision.moves) - promoted,
        handed_over=int(decision.hands_over),
    )


def _unchanged(assignment: Assignment) -> Compare:
    return Compare.mod_revision(assignment.kv.key, assignment.kv.mod_revision)


def _add(
    state: AllocState, item_id: ItemId, add: Add, keys: Keys
) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    member = state.members[add.member_id].kv
    key = keys.assignment(item_id, add.member_id, add.slot)
    # The assignment is on its member's lease, so that both disappear in one revision when the member dies.
    return (
        (Compare.mod_revision(member.key, member.mod_revision), Compare.absent(key)),
        (Put(key, b"", lease=member.lease),),
    )


def _remove(assignment: Assignment) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    return (_unchanged(assignment),), (Delete(assignment.kv.key),)


def _move(
    move: SlotMove, consistency: Consistency, keys: Keys
) -> tuple[tuple[Compare, ...], tuple[Operation, ...]]:
    assignment = move.assignment
    # What a primary said of itself is not true of the standby that it becomes.
    value = consistency.standby_value(assignment) if move.from_primary else assignment.kv.value
    key = keys.assignment(assignment.item_id, assignment.member_id, move.slot)
    return (
        (_unchanged(assignment), Compare.absent(key)),
        (
            Delete(assignment.kv.key),
            Put(key, value, lease=assignment.kv.lease),
        ),
    )


def _dead_steps(state: AllocState, item_id: ItemId, keys: Keys) -> Iterator[ConvergeStep]:
    """Yield the deletion of assignments whose item is gone. Nothing depends on them, so there is no gate."""
    dead = state.assignments[item_id]
    for start in range(0, len(dead), DEAD_PER_CHECKPOINT_MAX):
        group = dead[start : start + DEAD_PER_CHECKPOINT_MAX]
        yield ConvergeStep(
            TxnCheckpoint(
                (Compare.absent(keys.item(item_id)), *map(_unchanged, group)),
                tuple(Delete(assignment.kv.key) for assignment in group),
                subject=item_id,
            ),
            ReplicaCounts(removed=len(group)),
            "deleted",
        )
