"""The autoscaler of a member: while the member leads, it decides every few seconds, and logs and does what it decides.

    load reports, specs, members ──► sample ──► `broadsheet.consumer.elastic.scaling` ──► an entry of the move log,
                                                fenced by the leader's epoch ──► split or merge, as operators do

The entry comes first, so a leader that is superseded does nothing. Splits and merges are those that operators order
(`ElasticClient`), with all of their checks; one that is refused is logged with the reason and not repeated within the
hour. Members are not started here: their wanted number is a metric, which the leader alone has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry

from broadsheet.allocator.errors import EtcdError, KeyDecodeError
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import AuxiliaryKeys, member_id_below
from broadsheet.allocator.leader.leadership import Fence
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.leader.move_records import (
    DecisionOutcome,
    DecisionRecord,
    decoded_or_none,
)
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue, prefix_range_end
from broadsheet.allocator.state.load import MemberReport, ReplicaLoad
from broadsheet.consumer.client.elastic_client import ElasticClient
from broadsheet.consumer.elastic.family import Ownership
from broadsheet.consumer.elastic.fork import forks_prefix
from broadsheet.consumer.elastic.merge import merges_prefix
from broadsheet.consumer.elastic.scaling import (
    FAMILY_RATE,
    MEMBERS,
    ClusterSample,
    ScalingAction,
    ScalingDecision,
    ScalingRule,
    ScalingState,
    ShardSample,
    decide,
    refused,
)
from broadsheet.consumer.elastic.scaling_policy import ScalingMode, ScalingPolicy
from broadsheet.consumer.member.load_report import decode_report
from broadsheet.consumer.member.metrics import ScalingMetrics
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT, shard_of, spec_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import BroadsheetError, ValidationError

_MILLISECONDS = 1000.0
_NOTHING = MemberReport()
_CHANGES = frozenset({ScalingAction.SPLIT.value, ScalingAction.MERGE.value})
_RULES = frozenset(each.value for each in ScalingRule)

_log = structlog.get_logger()


class ShardReshaper(Protocol):
    """Splits and merges shards, as operators do."""

    async def check_split(self, shard_id: str, at_group: int) -> None:
        """Raise what would keep a shard from being split so; change nothing."""
        ...

    async def split(self, shard_id: str, at_group: int) -> None:
        """Begin a split."""
        ...

    async def check_merge(self, shard_id: str, absorbed: str) -> None:
        """Raise what would keep two shards from being merged; change nothing."""
        ...

    async def merge(self, shard_id: str, absorbed: str) -> None:
        """Begin a merge."""
        ...


class MemberReshaper:
    """Has the Elastic service of a member split and merge shards."""

    def __init__(self, client: Callable[[], ElasticClient], journals: JournalClient) -> None:
        """Keep the arguments.

        Args:
            client: Makes a client of a member, to be closed again.
            journals: Makes the new shard's recovery log.
        """
        self._client = client
        self._journals = journals

    async def check_split(self, shard_id: str, at_group: int) -> None:
        """Raise what would keep a shard from being split so; change nothing."""
        async with self._client() as elastic:
            await elastic.plan_split(shard_id, at_group=at_group)

    async def split(self, shard_id: str, at_group: int) -> None:
        """Begin a split."""
        async with self._client() as elastic:
            await elastic.split(shard_id, self._journals, at_group=at_group)

    async def check_merge(self, shard_id: str, absorbed: str) -> None:
        """Raise what would keep two shards from being merged; change nothing."""
        async with self._client() as elastic:
            await elastic.merge(shard_id, absorbed, dry_run=True)

    async def merge(self, shard_id: str, absorbed: str) -> None:
        """Begin a merge."""
        async with self._client() as elastic:
            await elastic.merge(shard_id, absorbed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDecision:
    """A decision of the log, and when it was made, by our monotonic clock."""

    at_seconds: float
    decision: DecisionRecord


class Autoscaler:
    """Decides while its member leads. `run` until cancelled."""

    def __init__(
        self,
        membership: LocalMember,
        *,
        fence: Callable[[], Fence | None],
        move_log: MoveLog,
        reshaper: ShardReshaper,
        policy: ScalingPolicy,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        """Bind to a member; nothing is read yet.

        Args:
            membership: Of this process.
            fence: Returns the comparisons of the leader's writes; None while this member does not lead.
            move_log: Where decisions are logged.
            reshaper: Carries splits and merges out.
            policy: The rules.
            clock: Time.
            registry: Of Prometheus metrics.
        """
        self._etcd = membership.etcd
        self._key_space: KeySpace = membership.key_space
        self._keys = AuxiliaryKeys(membership.key_space.keys.root)
        self._fence = fence
        self._move_log = move_log
        self._reshaper = reshaper
        self._policy = policy
        self._clock = clock
        self._state: ScalingState | None = None
        self._epoch = 0
        """Of the leadership that `_state` is of."""
        self._owned: dict[ItemId, tuple[int, Ownership]] = {}
        """By shard: the revision of its spec, and what that says, because decoding all of them takes long."""
        self._metrics = ScalingMetrics(registry)

    async def run(self) -> None:
        """Decide until cancelled; returns at once if the policy decides nothing."""
        if self._policy.mode is ScalingMode.OFF:
            return
        while True:
            await asyncio.sleep(self._policy.sample_seconds)
            try:
                await self.step()
            except EtcdError as error:
                # Load and decisions are the same at the next sample.
                _log.warning("autoscaler.sample_failed", cause=str(error))
            except Exception:
                # A member that died of it would pass it on to the next leader, until none is left.
                _log.exception("autoscaler.sample_failed")

    async def step(self) -> None:
        """Take a sample and act on it, if this member leads.

        Raises:
            EtcdError: etcd does not answer; a decision may then be logged, and is not carried out.
        """
        fence = self._fence()
        if fence is None:
            self._state, self._metrics.wanted_members = None, None
            return
        if self._state is None or fence.epoch != self._epoch:
            self._state, self._epoch = await self._state_from_log(), fence.epoch
        sample = await self._sample()
        state, decisions = decide(sample, self._state, self._policy)
        for each in decisions:
            outcome = await self._perform(each, fence)
            if outcome is None:
                # Another member leads, or will: nothing of this sample counts.
                self._state, self._metrics.wanted_members = None, None
                return
            is_change = each.action in (ScalingAction.SPLIT, ScalingAction.MERGE)
            if outcome is DecisionOutcome.REFUSED and is_change:
                state = refused(state, each)
        self._state = state
        if self._policy.mode is ScalingMode.ACT:
            self._metrics.wanted_members = state.wanted_members

    async def _perform(self, decision: ScalingDecision, fence: Fence) -> DecisionOutcome | None:
        """Log a decision and carry it out; None if it could not be logged, because this member leads no more."""
        reason = await self._refusal(decision)
        outcome = DecisionOutcome.REFUSED if reason else DecisionOutcome.ORDERED
        if not reason and self._policy.mode is ScalingMode.OBSERVE:
            outcome = DecisionOutcome.OBSERVED
        if not await self._tell(decision, outcome, reason, fence):
            return None
        if outcome is not DecisionOutcome.ORDERED:
            return outcome
        try:
            await self._carry_out(decision)
        except BroadsheetError as error:
            if not await self._tell(decision, DecisionOutcome.REFUSED, str(error), fence):
                return None
            return DecisionOutcome.REFUSED
        return outcome

    async def _refusal(self, decision: ScalingDecision) -> str:
        """Return why a change cannot be carried out; empty: it can."""
        try:
            if decision.action is ScalingAction.MERGE:
                await self._reshaper.check_merge(decision.shard_id, decision.absorbed_id)
            elif decision.action is ScalingAction.SPLIT:
                await self._reshaper.check_split(decision.shard_id, decision.at_group)
        except BroadsheetError as error:
            return str(error)
        return ""

    async def _carry_out(self, decision: ScalingDecision) -> None:
        if decision.action is ScalingAction.MERGE:
            await self._reshaper.merge(decision.shard_id, decision.absorbed_id)
        elif decision.action is ScalingAction.SPLIT:
            await self._reshaper.split(decision.shard_id, decision.at_group)

    async def _tell(
        self, decision: ScalingDecision, outcome: DecisionOutcome, reason: str, fence: Fence
    ) -> bool:
        """Log a decision; return False if this member leads no more."""
        record = DecisionRecord(
            action=decision.action.value,
            item=decision.shard_id,
            rule=decision.rule.value,
            inputs=dict(decision.inputs),
            outcome=outcome,
            reason=reason,
        )
        put = self._move_log.note_decision(record, epoch=fence.epoch)
        # Compared also where nothing is logged: who is superseded must not act.
        result = await self._etcd.txn(fence.compares, () if put is None else (put,))
        if not result.succeeded:
            return False
        self._metrics.on_decided(decision.action.value, outcome.value)
        _log.info(
            "autoscaler.decided",
            action=decision.action.value,
            rule=decision.rule.value,
            shard=decision.shard_id,
            outcome=outcome.value,
            reason=reason,
            **{name: round(value, 4) for name, value in decision.inputs.items()},
        )
        return True

    async def _state_from_log(self) -> ScalingState:
        """Return what earlier leaders left: when they changed what, and how many members they wanted."""
        now, wall = self._clock.monotonic_seconds(), self._clock.wall_seconds()
        kvs = await self._move_log.entries()
        # The log may have thousands of entries, each with hundreds of moves.
        logged = await asyncio.to_thread(_decisions, kvs)
        entries = [
            PastDecision(
                at_seconds=now - max(0.0, wall - at_milliseconds / _MILLISECONDS),
                decision=decision,
            )
            for at_milliseconds, decision in logged
        ]
        return state_of(entries, {each.shard_id: each.family for each in self._shard_samples({})})

    async def _sample(self) -> ClusterSample:
        prefix = self._keys.loads_prefix
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        # For thousands of shards this takes long.
        reports = await asyncio.to_thread(_decoded, prefix, found.kvs)
        members = self._key_space.members.values()
        return ClusterSample(
            at_seconds=self._clock.monotonic_seconds(),
            shards=self._shard_samples(reports),
            cpu_ratio=sum(
                load.cpu_ratio for each in reports.values() for load in each.replicas.values()
            ),
            members=sum(not member.value.is_exiting() for member in members),
            under_way=await self._under_way(),
        )

    async def _under_way(self) -> int:
        """Return how many splits and merges are not over; not those whose family was deleted meanwhile."""
        root, count = self._key_space.keys.root, 0
        for prefix in (forks_prefix(root), merges_prefix(root)):
            found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
            shards = [ItemId(kv.key[len(prefix) :].decode(errors="replace")) for kv in found.kvs]
            count += sum(each in self._key_space.items for each in shards)
        return count

    def _shard_samples(self, reports: Mapping[MemberId, MemberReport]) -> Sequence[ShardSample]:
        """Return all shards but forks, and those that are paused."""
        known, self._owned = self._owned, {}
        samples = []
        for item_id, item in self._key_space.items.items():
            revision = item.kv.mod_revision
            before = known.get(item_id)
            ownership = (
                before[1]
                if before is not None and before[0] == revision
                else Ownership.of(spec_of(item))
            )
            self._owned[item_id] = revision, ownership
            if ownership.fork_of or shard_of(item).disable:
                continue
            primary = self._primary_of(item_id)
            load = None if primary is None else reports.get(primary, _NOTHING).replicas.get(item_id)
            samples.append(_sample_of(item_id, ownership, load, serves=primary is not None))
        return samples

    def _primary_of(self, item_id: ItemId) -> MemberId | None:
        for assignment in self._key_space.assignments_of(item_id):
            if assignment.slot == PRIMARY_SLOT:
                return assignment.member_id
        return None


def state_of(entries: Sequence[PastDecision], families: Mapping[str, str]) -> ScalingState:
    """Return what a new leader knows from the log: changes, what was told, and how many members were wanted.

    Args:
        entries: The decisions of the log, oldest first.
        families: The family of each shard that exists.
    """
    state = ScalingState()
    for entry in entries:
        logged = entry.decision
        if logged.action == ScalingAction.SCALE:
            state = state.with_members(round(logged.inputs.get(MEMBERS, 0)))
        elif logged.outcome is DecisionOutcome.REFUSED or logged.action == ScalingAction.WARN:
            state = state.with_told(entry.at_seconds, logged.item)
        elif logged.action in _CHANGES and logged.rule in _RULES:
            decision = ScalingDecision(
                action=ScalingAction(logged.action),
                rule=ScalingRule(logged.rule),
                inputs={FAMILY_RATE: 0.0, **logged.inputs},
                shard_id=logged.item,
                family=families.get(logged.item, logged.item),
            )
            state = state.with_change(entry.at_seconds, decision)
    return state


def _decisions(kvs: Sequence[KeyValue]) -> list[tuple[int, DecisionRecord]]:
    """Return the decisions of the log with their times, milliseconds since the Unix epoch."""
    return [
        (entry.at_milliseconds, entry.decision)
        for entry in map(decoded_or_none, kvs)
        if entry is not None and entry.decision is not None
    ]


def _decoded(prefix: bytes, kvs: Sequence[KeyValue]) -> dict[MemberId, MemberReport]:
    reports = {}
    for kv in kvs:
        # The leader's placement tells of those that cannot be decoded.
        with suppress(KeyDecodeError, ValidationError):
            reports[member_id_below(prefix, kv.key)] = decode_report(kv.value)
    return reports


def _sample_of(
    item_id: ItemId, ownership: Ownership, load: ReplicaLoad | None, *, serves: bool
) -> ShardSample:
    load = load or ReplicaLoad()
    return ShardSample(
        shard_id=item_id,
        family=ownership.family,
        owned=ownership.owned,
        serves=serves,
        cpu_ratio=load.cpu_ratio,
        behind_seconds=load.behind_seconds,
        bytes_per_second=load.bytes_per_second,
        median_group=load.median_group,
        busiest_group_ratio=load.busiest_group_ratio,
        state_bytes=load.state_bytes,
    )
