"""The rules of an election: which member should lead, and when it claims. Pure: time comes in as a number.

Members that support elections have a candidate key on their lease. The others (Gazette's) follow one rule: the oldest
member leads. A candidate may therefore lead only while it is older than every member that is not a candidate; such a
member then cannot be the oldest as long as the candidate's own key exists, which every write of a leader compares.

Among the members that may lead, the oldest one that is not exiting is preferred, because a rollout drains the oldest
first. It claims at once if there is no leader; the others follow in order, each a little later, in case it does not
claim. A leader whose beat stops is suspected, then confirmed as silent, and then superseded. An exiting leader gives
way to a member that is not exiting.

    no leader             rank 0 claims at once, rank n after n graces
    beat stops            the same, counted from the end of a suspicion and of its confirmation
    leader exiting        rank 0 claims, if it is not exiting itself

The beat is timed by the observer's own monotonic clock. A claim compares the leader's key as it was observed, so it
fails if the leader wrote a beat after all. The confirmation makes sure that etcd answered throughout: a leader that
could not write its beat because etcd was unavailable must not be superseded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

import msgspec

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import Member, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, LaterFormatError

ELECTION: Final = Format(
    "a record of the election", "members of that release lead as long as one of them lives"
)


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The leader, and a number that grows while the leader makes progress.

    Values of an election's keys are JSON:

        leader       {"member": "zone#suffix", "epoch": 7, "beat": 42}     on the leader's lease
        epoch        {"member": "zone#suffix", "epoch": 7}                 stays
        candidate    {"may_lead": true}                                    on the member's lease

    Unknown fields are ignored, so that a later version may add some.
    """

    member: str
    epoch: int
    beat: int


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The current leadership: it begins with a claim, and ends with the next claim."""

    member: str
    epoch: int


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member that supports elections."""

    may_lead: bool = True
    """False once the member is about to leave: the other members then do not wait for it."""


RecordT = TypeVar("RecordT", LeaderRecord, EpochRecord, CandidateRecord)


def encoded(record: LeaderRecord | EpochRecord | CandidateRecord) -> bytes:
    """Return the value to store."""
    return msgspec.json.encode(record)


def decoded_or_none(value: bytes, kind: type[RecordT]) -> RecordT | None:
    """Return the record of a stored value; None if it cannot be decoded.

    Such a value counts as absent, but its revision still counts, so that a claim can replace it.
    """
    try:
        return ELECTION.decode_json(value, kind)
    except DocumentError:
        return None


def _refusal(value: bytes) -> str:
    try:
        ELECTION.decode_json(value, LeaderRecord)
    except LaterFormatError as error:
        return str(error)
    except DocumentError:
        pass
    return ""


def name_of(member_id: MemberId) -> str:
    """Return a member's name in records."""
    return str(member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipConfig:
    """Times of an election."""

    beat_seconds: float = 2.0
    """Pause between two beats of a leader."""
    suspect_after_seconds: float = 6.0
    """A leader without a beat for this long is suspected; several beats, because one may be late."""
    confirm_seconds: float = 4.0
    """The time that a suspected leader has to beat after etcd has answered."""
    claim_grace_seconds: float = 1.0
    """The additional wait of each candidate relative to the one before it."""
    turn_seconds_max: float = 10.0
    """The longest time of one turn of the allocation loop without a solve that counts as progress."""
    solve_seconds_max: float = 60.0
    """The same with a solve. If a solve takes longer, another member that can lead may try it."""

    @classmethod
    def for_lease(cls, ttl_seconds: float) -> LeadershipConfig:
        """Return times that are shares of a long lease: beats that take long because of etcd cost no leader its epoch.

        They are the defaults for leases of 20 s and less.
        """
        times = cls()
        return replace(
            times,
            suspect_after_seconds=max(times.suspect_after_seconds, 0.3 * ttl_seconds),
            confirm_seconds=max(times.confirm_seconds, 0.2 * ttl_seconds),
            claim_grace_seconds=max(times.claim_grace_seconds, 0.05 * ttl_seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionView:
    """An election as one member sees it."""

    own_id: MemberId
    members: Mapping[MemberId, Member]
    candidates: Mapping[MemberId, CandidateRecord]
    """Candidates whose key is on the current lease of their member."""
    leader_kv: KeyValue | None
    leader: LeaderRecord | None
    leader_refusal: str
    """The reason why a later release's record of the leader cannot be read; empty: there is none."""
    epoch_kv: KeyValue | None
    epoch: EpochRecord | None

    @classmethod
    def of(
        cls,
        own_id: MemberId,
        keys: AuxiliaryKeys,
        members: Mapping[MemberId, Member],
        kvs: Mapping[bytes, KeyValue],
        before: ElectionView | None = None,
    ) -> ElectionView:
        """Read the keys of an election.

        Args:
            own_id: The member whose view it is.
            keys: The syntax of the keys.
            members: Members of the key space.
            kvs: Auxiliary keys of the election.
            before: The previous view. A member that was a candidate under the same lease still counts as one without
                its key: both keys end with the lease, but the end of the other one may be seen later.
        """
        candidates: dict[MemberId, CandidateRecord] = {}
        for member_id, member in members.items():
            kv = kvs.get(keys.candidate(member_id))
            if kv is not None and kv.lease == member.kv.lease:
                record = decoded_or_none(kv.value, CandidateRecord)
                candidates[member_id] = record or CandidateRecord()
            elif before is not None and before.stood(member):
                candidates[member_id] = before.candidates[member_id]
        leader_kv, epoch_kv = kvs.get(keys.leader), kvs.get(keys.epoch)
        return cls(
            own_id=own_id,
            members=members,
            candidates=candidates,
            leader_kv=leader_kv,
            leader=None if leader_kv is None else decoded_or_none(leader_kv.value, LeaderRecord),
            leader_refusal="" if leader_kv is None else _refusal(leader_kv.value),
            epoch_kv=epoch_kv,
            epoch=None if epoch_kv is None else decoded_or_none(epoch_kv.value, EpochRecord),
        )

    def stood(self, member: Member) -> bool:
        """Return whether a member was a candidate under the same lease."""
        known = self.members.get(member.member_id)
        return (
            member.member_id in self.candidates
            and known is not None
            and known.kv.create_revision == member.kv.create_revision
        )

    def order(self) -> list[MemberId]:
        """Return the members that may lead, the preferred one first."""
        others = [m for m in self.members if m not in self.candidates]
        oldest_other = min((self._age(m) for m in others), default=None)
        able = [
            member_id
            for member_id, record in self.candidates.items()
            if record.may_lead
            # It would give itself what it misreads. It obeys epochs, so that it can be superseded.
            and not self.members[member_id].value.is_outdated
            and (oldest_other is None or self._age(member_id) < oldest_other)
        ]
        return sorted(able, key=lambda m: (self._is_exiting(m), self._age(m)))

    def own_leadership(self) -> KeyValue | None:
        """Return the epoch's key if the own member leads and may lead."""
        own = self.members.get(self.own_id)
        if own is None or self.leader_kv is None or self.leader is None or self.epoch is None:
            return None
        named = name_of(self.own_id)
        # The lease tells us from an earlier process with the same member id.
        is_ours = (
            self.leader.member == self.epoch.member == named
            and self.leader.epoch == self.epoch.epoch
            and self.leader_kv.lease == own.kv.lease
        )
        return self.epoch_kv if is_ours and self.own_id in self.order() else None

    def leading_member(self) -> MemberId | None:
        """Return the member that leads and may lead; None if there is none."""
        if self.leader_kv is None or self.leader is None:
            return None
        for member_id in self.order():
            member = self.members[member_id]
            if name_of(member_id) == self.leader.member and member.kv.lease == self.leader_kv.lease:
                return member_id
        return None

    def is_led_by_outdated(self) -> bool:
        """Return whether a member leads that cannot read what the cluster has stored."""
        if self.leader_kv is None or self.leader is None:
            return False
        return any(
            member.value.is_outdated
            and name_of(member_id) == self.leader.member
            and member.kv.lease == self.leader_kv.lease
            for member_id, member in self.members.items()
        )

    def is_exiting(self, member_id: MemberId) -> bool:
        """Return whether a member wants to leave."""
        return self._is_exiting(member_id)

    def _is_exiting(self, member_id: MemberId) -> bool:
        return self.members[member_id].value.is_exiting()

    def _age(self, member_id: MemberId) -> tuple[int, MemberId]:
        return (self.members[member_id].kv.create_revision, member_id)


class ElectionAction(Enum):
    """An action of the own member in an election."""

    WAIT = "wait"
    STAND = "stand"
    """Write the candidate key."""
    CONFIRM = "confirm"
    """Check that etcd answers, and record that with `Election.confirmed`."""
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class ElectionDecision:
    """The action to take now, and the time to check again if nothing changes before."""

    action: ElectionAction = ElectionAction.WAIT
    again_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Election:
    """A member's immutable memory of an election: when the current conditions began."""

    config: LeadershipConfig
    _observed: tuple[MemberId | None, int, int] | None = None
    """The leader with its epoch and its beat."""
    _since_monotonic_seconds: float = 0.0
    _confirmed_monotonic_seconds: float | None = None

    def observed(self, view: ElectionView, now_monotonic_seconds: float) -> Election:
        """Return the memory after a new view."""
        if view.own_id not in view.candidates:
            # A member that is not a candidate yet has no place in the order.
            return self
        leader = view.leading_member()
        beat = (view.leader.epoch, view.leader.beat) if leader and view.leader else (0, 0)
        if view.leader_refusal and view.leader_kv is not None:
            beat = (-1, view.leader_kv.mod_revision)
        observed = (leader, *beat)
        if observed == self._observed:
            return self
        return Election(self.config, observed, now_monotonic_seconds)

    def confirmed(self, now_monotonic_seconds: float) -> Election:
        """Return the memory after etcd answered."""
        return replace(self, _confirmed_monotonic_seconds=now_monotonic_seconds)

    def decision(self, view: ElectionView, now_monotonic_seconds: float) -> ElectionDecision:
        """Return the own member's next action.

        Args:
            view: The latest view.
            now_monotonic_seconds: The current time.
        """
        config = self.config
        if view.own_id not in view.candidates:
            return ElectionDecision(ElectionAction.STAND, config.claim_grace_seconds)
        if view.leader_refusal:
            # Its beat cannot be read, so it cannot be suspected either. The key is on its lease, and ends with it.
            return ElectionDecision()
        leader = view.leading_member()
        order = [m for m in view.order() if m != leader]
        if view.own_id not in order:
            return ElectionDecision()
        if view.is_exiting(view.own_id) and view.is_led_by_outdated():
            # That one prefers itself to an exiting leader: both would take leadership from each other for ever.
            return ElectionDecision()
        rank = order.index(view.own_id)
        grace = rank * config.claim_grace_seconds
        if leader is None:
            return self._claim_at(self._since_monotonic_seconds + grace, now_monotonic_seconds)
        # Two exiting members would take leadership from each other again and again.
        if rank == 0 and view.is_exiting(leader) and not view.is_exiting(view.own_id):
            return self._claim_at(now_monotonic_seconds, now_monotonic_seconds)
        suspected = self._since_monotonic_seconds + config.suspect_after_seconds
        if now_monotonic_seconds < suspected:
            return ElectionDecision(again_after_seconds=suspected - now_monotonic_seconds)
        if self._confirmed_monotonic_seconds is None:
            return ElectionDecision(ElectionAction.CONFIRM, 0.0)
        deadline = self._confirmed_monotonic_seconds + config.confirm_seconds + grace
        return self._claim_at(deadline, now_monotonic_seconds)

    def _claim_at(self, deadline: float, now: float) -> ElectionDecision:
        if now < deadline:
            return ElectionDecision(again_after_seconds=deadline - now)
        # The outcome of the claim appears in the mirror.
        return ElectionDecision(ElectionAction.CLAIM, self.config.claim_grace_seconds)
