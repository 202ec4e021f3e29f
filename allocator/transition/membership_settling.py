"""Settling of membership, and drains that wait for a member that replaces the leaving one.

Exits and joins come in pairs when a cluster is renewed member by member. Treated one at a time they cause twice the
moves: balancing towards the new member, then draining its predecessor to all members. So balance waits until no member
has joined, left or started to exit for a while, within a bound; and a new member is the heir of the leaving member of
its zone: until that one is gone it has the same weight, so that the drained replicas go to the heir and nowhere else.

    joins ───────► newcomer ── paired by zone, oldest first ──► heir of a leaving member
    starts to exit ──► waits ──── has an heir, or patience is over ──► drains ──► gone

If nothing was placed at the first observation, the cluster is starting, not being renewed: until its membership has
been quiet for the first time, balance does not wait.

Invariants: pure, time is a parameter; events before a leader took over are derived from etcd's revisions where
possible, and otherwise count as having always been so; a drain that has begun continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from broadsheet.allocator.model import ItemId, Member, MemberId
from broadsheet.allocator.placement.problem import Desired
from broadsheet.allocator.policy import Objective, TransitionPolicy
from broadsheet.allocator.transition.capacity import Blocked, BlockedChange, WaitReason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Presence:
    """Known facts about a member."""

    member: Member
    joined_monotonic_seconds: float
    is_newcomer: bool
    """It joined since membership was last at rest."""
    exiting_since_monotonic_seconds: float | None = None
    drains: bool = False
    """It may give up its replicas."""

    @property
    def is_exiting(self) -> bool:
        return self.exiting_since_monotonic_seconds is not None

    @property
    def identity(self) -> tuple[int, bool]:
        """A value that differs after a change of membership."""
        return (self.member.kv.create_revision, self.is_exiting)


@dataclass(frozen=True, slots=True)
class _Heir:
    """The member that a new one replaces."""

    predecessor: MemberId
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """An immutable record of membership, as of the last observation."""

    policy: TransitionPolicy = field(default_factory=TransitionPolicy)
    observed_monotonic_seconds: float = 0.0
    changed_monotonic_seconds: float | None = None
    """When a member last joined, left or started to exit; None before the first observation."""
    unsettled_monotonic_seconds: float | None = None
    """When the first of the changes that balance waits for was; None before the first observation."""
    is_starting: bool = False
    """Nothing was placed at first, and membership has changed ever since."""
    _presences: Mapping[MemberId, _Presence] = field(default_factory=dict)
    _heirs: Mapping[MemberId, _Heir] = field(default_factory=dict)
    _members: Mapping[MemberId, Member] | None = None
    """The observed members."""
    _same_until_monotonic_seconds: float = float("-inf")
    """Until this time, another observation of the same members has the same result."""

    def observed(
        self,
        members: Mapping[MemberId, Member],
        now_monotonic_seconds: float,
        *,
        capacities: Mapping[MemberId, int] | None = None,
        is_placed: bool = True,
    ) -> Settling:
        """Return the record after an observation.

        Args:
            members: Every member; not changed afterwards.
            now_monotonic_seconds: The current time.
            capacities: The load that members can carry, if it is not their limit.
            is_placed: Whether any item has a replica.
        """
        # The caller makes a new mapping for each change of members, so identity is enough.
        if members is self._members and now_monotonic_seconds < self._same_until_monotonic_seconds:
            return replace(self, observed_monotonic_seconds=now_monotonic_seconds)
        now, changed = now_monotonic_seconds, self.changed_monotonic_seconds
        unsettled, is_starting = self.unsettled_monotonic_seconds, self.is_starting
        if changed is None:
            changed, presences = now, _first_seen(members, now)
            unsettled = now
            is_starting = not is_placed and self.policy.settle_seconds > 0.0
        else:
            is_starting = is_starting and now < changed + self.policy.settle_seconds
            presences = {m: self._presence(member, now) for m, member in members.items()}
            if self._differs(presences):
                if replace(self, observed_monotonic_seconds=now).is_settled:
                    # The upper bound counts from the first change, so that changes without end cannot postpone balance
                    # for ever.
                    unsettled = now
                changed = now
        if not any(p.is_exiting for p in presences.values()) and (
            now >= changed + self._memory_seconds
        ):
            # A join and an exit that are this far apart do not belong to one renewal.
            presences = {m: replace(p, is_newcomer=False) for m, p in presences.items()}
        heirs = _heirs(presences, self._heirs, capacities or {}) if self._memory_seconds else {}
        looked = replace(
            self,
            observed_monotonic_seconds=now,
            changed_monotonic_seconds=changed,
            unsettled_monotonic_seconds=unsettled,
            is_starting=is_starting,
            _presences=self._begun(presences, heirs, now),
            _heirs=heirs,
            _members=members,
        )
        return replace(looked, _same_until_monotonic_seconds=looked.rests_until())

    @property
    def is_settled(self) -> bool:
        """True if balance may move replicas."""
        settle_seconds = self.policy.settle_seconds
        if not settle_seconds or self.changed_monotonic_seconds is None:
            return not settle_seconds
        if self.is_starting or self.observed_monotonic_seconds >= self._settles_at_last:
            return True
        # Summed as in `_deadlines`, so that a timer set from it finds the deadline passed.
        return not self._anyone_exits and (
            self.observed_monotonic_seconds >= self.changed_monotonic_seconds + settle_seconds
        )

    @property
    def _settles_at_last(self) -> float:
        """The time at which balance stops waiting in any case."""
        since, longest = self.unsettled_monotonic_seconds, self.policy.settle_seconds_max
        return since + longest if longest and since is not None else float("inf")

    def describe(self) -> str:
        """Return the reason for which balance waits, for people."""
        quiet, longest = self.policy.settle_seconds, self.policy.settle_seconds_max
        words = f"balance waits until membership has not changed for {quiet:g} s and no member is leaving"
        if not longest:
            return words
        left = max(0.0, self._settles_at_last - self.observed_monotonic_seconds)
        return f"{words}, {left:.0f} s more at most"

    @property
    def drains_waiting(self) -> frozenset[MemberId]:
        """Exiting members that keep their replicas for now."""
        return frozenset(m for m, p in self._presences.items() if p.is_exiting and not p.drains)

    @property
    def capacities(self) -> Mapping[MemberId, int]:
        """The capacities of heirs, in place of their configured ones."""
        return {m: heir.capacity for m, heir in self._heirs.items()}

    def objective(self, configured: Objective) -> Objective:
        """Return the current objective of solves."""
        return configured if self.is_settled else replace(configured, moves_before_balance=True)

    def next_change_seconds(self, now_monotonic_seconds: float) -> float | None:
        """Return how long until time alone changes anything here; None if it does not."""
        upcoming = min(self._deadlines(), default=None)
        return None if upcoming is None else max(0.0, upcoming - now_monotonic_seconds)

    def _deadlines(self) -> Iterator[float]:
        for presence in self._presences.values():
            since = presence.exiting_since_monotonic_seconds
            if since is not None and not presence.drains:
                yield since + self.policy.drain_patience_seconds
        changed = self.changed_monotonic_seconds
        if changed is not None and not self.is_settled and self.policy.settle_seconds_max:
            yield self._settles_at_last
        if changed is None:
            return
        if self.is_starting:
            # Also while a member leaves, because a start is over once membership has been quiet for this long.
            yield changed + self.policy.settle_seconds
        if self._anyone_exits:
            return
        if not self.is_settled:
            yield changed + self.policy.settle_seconds
        if self._heirs:
            yield changed + self._memory_seconds

    def rests_until(self) -> float:
        """Return the time until which time alone changes nothing, including which members count as new."""
        upcoming = list(self._deadlines())
        presences = self._presences.values()
        if not self._anyone_exits and any(presence.is_newcomer for presence in presences):
            assert self.changed_monotonic_seconds is not None, "there was a look"
            upcoming.append(self.changed_monotonic_seconds + self._memory_seconds)
        return min(upcoming, default=float("inf"))

    @property
    def _anyone_exits(self) -> bool:
        return any(presence.is_exiting for presence in self._presences.values())

    @property
    def _memory_seconds(self) -> float:
        """The time after the last join or exit during which they count as one renewal."""
        return max(self.policy.settle_seconds, self.policy.drain_patience_seconds)

    def _presence(self, member: Member, now: float) -> _Presence:
        known = self._presences.get(member.member_id)
        # A member that was announced again is a newcomer, also under its old id.
        if known is None or known.member.kv.create_revision != member.kv.create_revision:
            known = _Presence(member=member, joined_monotonic_seconds=now, is_newcomer=True)
        exiting = member.value.is_exiting()
        # Keeps `drains`: a drain that has begun continues.
        if exiting == known.is_exiting:
            return replace(known, member=member)
        return replace(
            known,
            member=member,
            exiting_since_monotonic_seconds=now if exiting else None,
            drains=False,
        )

    def _differs(self, presences: Mapping[MemberId, _Presence]) -> bool:
        return {m: p.identity for m, p in presences.items()} != {
            m: p.identity for m, p in self._presences.items()
        }

    def _begun(
        self, presences: Mapping[MemberId, _Presence], heirs: Mapping[MemberId, _Heir], now: float
    ) -> Mapping[MemberId, _Presence]:
        """Begin the drains that do not wait any longer."""
        succeeded = {heir.predecessor for heir in heirs.values()}
        patience = self.policy.drain_patience_seconds
        return {
            m: replace(p, drains=True)
            if p.exiting_since_monotonic_seconds is not None
            and (m in succeeded or now >= p.exiting_since_monotonic_seconds + patience)
            else p
            for m, p in presences.items()
        }


def _heirs(
    presences: Mapping[MemberId, _Presence],
    known: Mapping[MemberId, _Heir],
    capacities: Mapping[MemberId, int],
) -> Mapping[MemberId, _Heir]:
    """Pair new members with leaving members of their zones, the oldest first."""
    heirs = {m: h for m, h in known.items() if m in presences and presences[m].is_newcomer}
    succeeded = {heir.predecessor for heir in heirs.values()}
    free = sorted(
        (p.joined_monotonic_seconds, p.member.kv.create_revision, m)
        for m, p in presences.items()
        # A member that takes nothing cannot replace another.
        if p.is_newcomer and not p.is_exiting and m not in heirs and _takes_items(p.member)
    )
    leaving = sorted(
        (p.exiting_since_monotonic_seconds, p.member.kv.create_revision, m)
        for m, p in presences.items()
        if p.exiting_since_monotonic_seconds is not None and m not in succeeded
    )
    for *_, predecessor in leaving:
        heir = next((m for *_, m in free if m.zone == predecessor.zone and m not in heirs), None)
        if heir is not None:
            limit = presences[predecessor].member.value.item_limit()
            heirs[heir] = _Heir(predecessor, capacities.get(predecessor, limit))
    return heirs


def _takes_items(member: Member) -> bool:
    return member.value.item_limit() > 0 and not member.value.is_cordoned()


def _first_seen(members: Mapping[MemberId, Member], now: float) -> dict[MemberId, _Presence]:
    """Return facts from etcd's revisions: a member created after another started to exit may replace it."""
    exits = [
        (member_id.zone, member.kv.mod_revision)
        for member_id, member in members.items()
        if member.value.is_exiting()
    ]
    return {
        member_id: _Presence(
            member=member,
            joined_monotonic_seconds=now,
            is_newcomer=any(
                zone == member_id.zone and revision < member.kv.create_revision
                for zone, revision in exits
            ),
            exiting_since_monotonic_seconds=now if member.value.is_exiting() else None,
        )
        for member_id, member in members.items()
    }


def waits_to_settle(desired: Desired, balanced: Desired, detail: str) -> Iterator[Blocked]:
    """Yield the moves that balance will make once membership has settled.

    Args:
        desired: The placement in force.
        balanced: The placement under the configured objective.
        detail: The reason for the wait, and its length.
    """
    for item_id, members in desired.items():
        for member_id in sorted(set(balanced.get(item_id, members)) - set(members)):
            yield _waits_to_settle(item_id, member_id, detail)


def _waits_to_settle(item_id: ItemId, member_id: MemberId, detail: str) -> Blocked:
    return Blocked(
        item_id=item_id,
        reason=WaitReason.SETTLING,
        change=BlockedChange.ADD,
        member_id=member_id,
        detail=detail,
    )
