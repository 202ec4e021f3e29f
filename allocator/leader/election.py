"""The rules of an election: which member should lead, and when it claims. Pure: time comes in as a number.

Members that know of elections say so with a candidate key on their lease. Others (the model's) know one rule: the
oldest member leads. A candidate may therefore lead only while it is older than every member that is no candidate; such
a member then cannot be the oldest as long as the candidate's own key is there, which every write of a leader compares.

Among those who may lead the oldest that is not exiting is preferred, for in a rollout the oldest is drained first. It
claims at once where nobody leads; the others a little later each, in their order, in case that it does not. A leader
whose beat stands still is suspected, then asked after once more, and then superseded. A leader that is exiting gives
way to one that is not.

    nobody leads          rank 0 claims at once, rank n after n graces
    beat stands still     the same, counted from the end of a suspicion and of its confirmation
    leader exiting        rank 0 claims, if it is not exiting itself

The beat is timed by the observer's own monotonic clock. A claim compares the leader's key as it was observed, so it
fails if the leader moved after all. The confirmation makes sure that etcd answered all the while: a leader that could
not write its beat because etcd was away must not be superseded for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

import msgspec

from broadsheet.allocator.documents import DocumentError, decode_json
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import Member, MemberId
from broadsheet.allocator.ops import KeyValue

# What the keys of an election say, as JSON.
#
#     leader       {"member": "zone#suffix", "epoch": 7, "beat": 42}     on the leader's lease
#     epoch        {"member": "zone#suffix", "epoch": 7}                 stays
#     candidate    {"may_lead": true}                                    on the member's lease
#
# Fields that are unknown are ignored, so that a later version may add some. A value that cannot be
# read counts as absent, but its revision still counts: it can be replaced by a claim.


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads, and a number that grows as long as the leader gets on."""

    member: str
    epoch: int
    beat: int


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which leadership is in force: it begins with a claim, and ends with the next one's."""

    member: str
    epoch: int


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member that knows of elections."""

    may_lead: bool = True
    """False once it is about to leave: it is known to keep out of the way."""


RecordT = TypeVar("RecordT", LeaderRecord, EpochRecord, CandidateRecord)


def encoded(record: LeaderRecord | EpochRecord | CandidateRecord) -> bytes:
    """Return the value to store."""
    return msgspec.json.encode(record)


def decoded_or_none(value: bytes, kind: type[RecordT]) -> RecordT | None:
    """Return what a stored value says, if it can be read."""
    try:
        return decode_json(value, kind)
    except DocumentError:
        return None


def name_of(member_id: MemberId) -> str:
    """Return how records name a member."""
    return str(member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipConfig:
    """Times of an election."""

    beat_seconds: float = 2.0
    """Pause between two beats of a leader."""
    suspect_after_seconds: float = 6.0
    """A leader whose beat stands still for so long is suspected; some beats, for one may be late."""
    confirm_seconds: float = 4.0
    """A suspected leader has so long to beat after etcd has answered."""
    claim_grace_seconds: float = 1.0
    """How much longer than the one before each candidate waits."""
    turn_seconds_max: float = 10.0
    """How long one turn of the allocation loop may take without a solve and still count as getting on."""
    solve_seconds_max: float = 60.0
    """The same with a solve. Where others wait to lead, a solve that takes longer is one of theirs to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionView:
    """An election as one member sees it."""

    own_id: MemberId
    members: Mapping[MemberId, Member]
    candidates: Mapping[MemberId, CandidateRecord]
    """Those whose key is on the lease of the member's present life."""
    leader_kv: KeyValue | None
    leader: LeaderRecord | None
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
            own_id: Whose view it is.
            keys: The syntax of the keys.
            members: Members of the key space.
            kvs: Auxiliary keys of the election.
            before: The view before this one. A member that stood as a candidate in its present life still counts as
                one without its key: both keys go with the lease, but the other one may be seen to go later.
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
            epoch_kv=epoch_kv,
            epoch=None if epoch_kv is None else decoded_or_none(epoch_kv.value, EpochRecord),
        )

    def stood(self, member: Member) -> bool:
        """Return whether a member was a candidate in the same life."""
        known = self.members.get(member.member_id)
        return (
            member.member_id in self.candidates
            and known is not None
            and known.kv.create_revision == member.kv.create_revision
        )

    def order(self) -> list[MemberId]:
        """Return those who may lead, the preferred one first."""
        others = [m for m in self.members if m not in self.candidates]
        oldest_other = min((self._age(m) for m in others), default=None)
        able = [
            member_id
            for member_id, record in self.candidates.items()
            if record.may_lead and (oldest_other is None or self._age(member_id) < oldest_other)
        ]
        return sorted(able, key=lambda m: (self._is_exiting(m), self._age(m)))

    def own_leadership(self) -> KeyValue | None:
        """Return the epoch's key if the own member leads, and may."""
        own = self.members.get(self.own_id)
        if own is None or self.leader_kv is None or self.leader is None or self.epoch is None:
            return None
        named = name_of(self.own_id)
        is_ours = (
            self.leader.member == self.epoch.member == named
            and self.leader.epoch == self.epoch.epoch
            and self.leader_kv.lease == own.kv.lease
        )
        return self.epoch_kv if is_ours and self.own_id in self.order() else None

    def leading_member(self) -> MemberId | None:
        """Return the member that leads and may; None if there is none."""
        if self.leader_kv is None or self.leader is None:
            return None
        for member_id in self.order():
            member = self.members[member_id]
            if name_of(member_id) == self.leader.member and member.kv.lease == self.leader_kv.lease:
                return member_id
        return None

    def is_exiting(self, member_id: MemberId) -> bool:
        """Return whether a member wants to leave."""
        return self._is_exiting(member_id)

    def _is_exiting(self, member_id: MemberId) -> bool:
        return self.members[member_id].value.is_exiting()

    def _age(self, member_id: MemberId) -> tuple[int, MemberId]:
        return (self.members[member_id].kv.create_revision, member_id)


class ElectionAction(Enum):
    """What the own member does in an election."""

    WAIT = "wait"
    STAND = "stand"
    """Write the candidate key."""
    CONFIRM = "confirm"
    """Ask etcd whether it answers at all, and remember that with `Election.confirmed`."""
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class ElectionDecision:
    """What to do now, and when to look again if nothing changes before."""

    action: ElectionAction = ElectionAction.WAIT
    again_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Election:
    """What a member remembers of an election: since when things are as they are. A look makes a new one."""

    config: LeadershipConfig
    _observed: tuple[MemberId | None, int, int] | None = None
    """The leader with its epoch and its beat."""
    _since_monotonic_seconds: float = 0.0
    _confirmed_monotonic_seconds: float | None = None

    def observed(self, view: ElectionView, now_monotonic_seconds: float) -> Election:
        """Return what is known after a look."""
        if view.own_id not in view.candidates:
            # A member that does not stand yet has no turn to wait for.
            return self
        leader = view.leading_member()
        beat = (view.leader.epoch, view.leader.beat) if leader and view.leader else (0, 0)
        observed = (leader, *beat)
        if observed == self._observed:
            return self
        return Election(self.config, observed, now_monotonic_seconds)

    def confirmed(self, now_monotonic_seconds: float) -> Election:
        """Return what is known once etcd answered."""
        return replace(self, _confirmed_monotonic_seconds=now_monotonic_seconds)

    def decision(self, view: ElectionView, now_monotonic_seconds: float) -> ElectionDecision:
        """Return what the own member should do.

        Args:
            view: What was observed last.
            now_monotonic_seconds: When this is.
        """
        config = self.config
        if view.own_id not in view.candidates:
            return ElectionDecision(ElectionAction.STAND, config.claim_grace_seconds)
        leader = view.leading_member()
        order = [m for m in view.order() if m != leader]
        if view.own_id not in order:
            return ElectionDecision()
        rank = order.index(view.own_id)
        grace = rank * config.claim_grace_seconds
        if leader is None:
            return self._claim_at(self._since_monotonic_seconds + grace, now_monotonic_seconds)
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
        # What became of the claim shows in the mirror.
        return ElectionDecision(ElectionAction.CLAIM, self.config.claim_grace_seconds)
