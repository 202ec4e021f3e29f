"""A leader's state: its memory between rounds. Except for pacing, it begins and ends with the term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from broadsheet.allocator.errors import KeyDecodeError, MemberKeyLostError
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import ItemKey, Keys
from broadsheet.allocator.leader.leadership import Fence
from broadsheet.allocator.leader.move_records import Cause
from broadsheet.allocator.leader.round_plan import RoundResult
from broadsheet.allocator.leader.stored_plan import StoredPlan
from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.allocator.state.alloc_state import Consistency, Snapshot
from broadsheet.allocator.state.derived_state import DerivedState, parts_of
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.transition.membership_settling import Settling
from broadsheet.runtime.clock import Clock


@dataclass(slots=True)
class PacingPolicy:
    """Pacing of changes: when membership has settled, which drains wait, and when a live primary may move.

    By default only balance is paced: it waits until membership has settled. The state outlives a term: etcd does not
    record since when a drain waits, and if each epoch restarted the wait, elections more frequent than the patience
    would postpone it for ever. Changes under another leader show as a difference, and count as having happened now; but
    a member that cancelled its exit, and then left, counts as exiting throughout.
    """

    policy: AllocationPolicy
    _settling: Settling = field(init=False)
    _hand_over_monotonic_seconds: float = float("-inf")

    def __post_init__(self) -> None:
        """Start without history."""
        self._settling = Settling(policy=self.policy.transition)

    @property
    def drains_waiting(self) -> frozenset[MemberId]:
        """Exiting members that keep their replicas for now, as of the last observation."""
        return self._settling.drains_waiting

    @property
    def settling(self) -> Settling:
        """The state of membership, as of the last observation."""
        return self._settling

    def observe(self, derived: DerivedState, now_monotonic_seconds: float) -> None:
        """Observe members and the clock, and update the derived state accordingly."""
        self._settling = self._settling.observed(
            derived.members,
            now_monotonic_seconds,
            capacities=derived.capacities,
            is_placed=derived.holds_anything,
        )
        derived.set_objective(self._settling.objective(self.policy.objective))
        derived.set_inherited(self._settling.capacities)
        derived.set_drains_waiting(self._settling.drains_waiting)

    def hand_overs_allowed(self, derived: DerivedState, now_monotonic_seconds: float) -> int:
        """Return how many live primaries may be moved now."""
        primaries = self.policy.primaries
        due = self._hand_over_monotonic_seconds + primaries.hand_over_interval_seconds
        if not primaries.hand_over_above_spread or now_monotonic_seconds < due:
            return 0
        # Last, because the spread takes time for each member.
        if derived.primary_spread() <= primaries.hand_over_above_spread:
            return 0
        return primaries.hand_overs_in_flight_max

    def on_hand_overs_asked(self, now_monotonic_seconds: float) -> None:
        """Start the interval until the next hand-overs, also if none of these took place."""
        self._hand_over_monotonic_seconds = now_monotonic_seconds

    def next_seconds(self, now_monotonic_seconds: float) -> Iterable[float]:
        """Yield the delays after which time alone may change something."""
        settling = self._settling.next_change_seconds(now_monotonic_seconds)
        if settling is not None:
            yield settling
        primaries = self.policy.primaries
        if primaries.hand_over_above_spread:
            due = self._hand_over_monotonic_seconds + primaries.hand_over_interval_seconds
            # Once due, a hand-over stays due until the cluster is at rest, which wakes the loop.
            yield (
                due - now_monotonic_seconds
                if due > now_monotonic_seconds
                else (primaries.hand_over_interval_seconds)
            )


@dataclass(slots=True)
class LeaderState:
    """A leader's memory of one term."""

    fence: Fence
    pacing: PacingPolicy
    stored: StoredPlan | None
    """The plan that the previous leader stored, until there is a plan."""
    plan: Plan | None = None
    """In force."""
    answered_version: int = -1
    """The derived state's plan version that `plan` answers."""
    ordered: Plan | None = None
    """The plan that an operator ordered, until a plan is made after it."""
    cause: Cause = field(default_factory=Cause)
    """The origin of `plan`."""
    waiting: set[ItemId] = field(default_factory=set)
    """Items that wait for their own replicas: not examined until those change, unless other items wait for them."""
    is_crowded: bool = False
    """Whether something waits for moves that are in flight."""
    is_informed: bool = False
    """Whether loads and the settling of membership are known: before that, a preview would mislead."""
    is_unsure: bool = False
    """Whether a request of ours may still be in flight to etcd: then nothing more is decided in this term."""
    audited_monotonic_seconds: float = 0.0
    rests_until_monotonic_seconds: float = 0.0
    _ordered_cause: Cause = field(default_factory=Cause)
    _order_settled: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, plan: Plan, cause: Cause) -> None:
        """Follow `plan` from the next round whose demand it answers, on behalf of an operator."""
        self.ordered, self._ordered_cause = plan, cause
        # Only a round over everything can adopt a plan, and this makes the next one such a round.
        self.answered_version = -1
        self._order_settled.clear()

    def settle_order(self) -> None:
        """End the wait for an order, because it was followed, superseded, or withdrawn."""
        self.ordered = None
        self._order_settled.set()

    async def order_settled(self) -> None:
        """Wait until no order is pending."""
        await self._order_settled.wait()

    def remember(self, result: RoundResult) -> None:
        """Store the result of a round; its plan is stored separately (`take_up`)."""
        if result.waiting_removed is None:
            self.waiting.clear()
        else:
            self.waiting -= result.waiting_removed
        self.waiting |= result.waiting_added
        self.is_crowded = result.is_crowded
        self.audited_monotonic_seconds = result.audited_monotonic_seconds
        self.rests_until_monotonic_seconds = result.rests_until_monotonic_seconds

    def take_up(self, plan: Plan, *, version: int) -> bool:
        """Store the plan that answers a plan version. Return whether it differs from the previous one."""
        is_new, self.stored, self.answered_version = plan is not self.plan, None, version
        is_ordered = self.ordered is not None and plan.desired == self.ordered.desired
        if is_new or is_ordered:
            self.cause = self._ordered_cause if is_ordered else Cause()
        # A plan that was made after the order supersedes it, so the wait for the order ends.
        if self.ordered is not None and (is_new or plan is self.ordered):
            self.settle_order()
        self.plan = plan
        return is_new


class Observation:
    """Keeps the state that is derived from a key space, while a leading or exiting member needs it."""

    def __init__(
        self,
        key_space: KeySpace,
        *,
        member_id: MemberId,
        consistency: Consistency,
        is_failed: Callable[[Assignment], bool],
        replace_failed_after_seconds: float,
    ) -> None:
        """Follow a key space.

        Args:
            key_space: Loaded before the first use.
            member_id: The local member.
            consistency: Tells which replicas are consistent.
            is_failed: Tells which replicas have failed.
            replace_failed_after_seconds: How long a standby may stay failed before it is placed elsewhere.
        """
        self._key_space = key_space
        self._member_id = member_id
        self.consistency = consistency
        # Kept from term to term, so that a new one does not restart the time for which replicas have failed.
        self._failed = FailedSince(
            is_failed, consistency, after_seconds=replace_failed_after_seconds
        )
        self._derived: DerivedState | None = None
        self._growing: DerivedState | None = None
        """A derived state that is not complete yet."""
        key_space.observe(ObserverStage.DERIVE, self._on_update)

    @property
    def keys(self) -> Keys:
        """The syntax of the root's keys."""
        return self._key_space.keys

    @property
    def derived(self) -> DerivedState:
        """The derived state; members that neither lead nor leave need not derive it."""
        if self._derived is None:
            self._derived = self._new_derived(look=True)
        return self._derived

    async def prepare(self, clock: Clock) -> None:
        """Derive the state in parts, and yield to other tasks between them.

        For very many items this takes seconds, longer than a lease on a busy machine. Changes that arrive meanwhile are
        applied as well.

        Args:
            clock: Time at which failed replicas are first seen.
        """
        while self._derived is None:
            growing = self._growing = self._new_derived(look=False)
            for part in parts_of(self._key_space):
                growing.apply(part)
                await asyncio.sleep(0)
            # Only now, because a replica that has failed for a while must not appear removed before its key is read.
            while growing.observe_some_failures(clock.monotonic_seconds()):  # noqa: ASYNC110 - a turn for others
                await asyncio.sleep(0)
            # Otherwise the term ended meanwhile (`forget`), and the loop starts again.
            if self._growing is growing:
                self._derived, self._growing = growing, None

    def forget(self) -> None:
        """Discard the derived state, so that it is derived again when next needed."""
        self._derived = self._growing = None

    def is_exiting(self) -> bool:
        """Return whether the local member is exiting, as far as the key space shows."""
        member = self._key_space.members.get(self._member_id)
        return member is not None and member.value.is_exiting()

    def is_drained(self) -> bool:
        """Return whether the local member is exiting and holds nothing.

        Raises:
            MemberKeyLostError: its key is gone.
        """
        member = self._key_space.members.get(self._member_id)
        if member is None:
            key = self._key_space.keys.member(self._member_id)
            # A key that exists but cannot be decoded does not mean that the member is gone.
            if self._key_space.kv_or_none(key) is None:
                raise MemberKeyLostError(key.decode())
            return False
        return member.value.is_exiting() and not self.derived.holds_items(self._member_id)

    def whole(self) -> Snapshot:
        """Return a snapshot of everything."""
        return self.derived.whole(
            revision=self._key_space.header.revision, unreadable_items=self._unreadable_items()
        )

    def partial(self, item_ids: frozenset[ItemId]) -> Snapshot:
        """Return a snapshot of these items and all global state."""
        return self.derived.partial(
            item_ids,
            revision=self._key_space.header.revision,
            unreadable_items=self._unreadable_items(),
        )

    def _on_update(self) -> None:
        for derived in (self._derived, self._growing):
            if derived is not None:
                derived.apply(self._key_space.changes)

    def _new_derived(self, *, look: bool) -> DerivedState:
        return DerivedState(
            self._key_space, local_id=self._member_id, failed=self._failed, look=look
        )

    def _unreadable_items(self) -> list[ItemId]:
        found: list[ItemId] = []
        for key in self._key_space.undecodable:
            with suppress(KeyDecodeError):
                parsed = self._key_space.keys.parse(key)
                if isinstance(parsed, ItemKey):
                    found.append(parsed.item_id)
        return found
