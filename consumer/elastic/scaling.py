"""Decides when shards are split or merged, and how many members are wanted. Pure; time is data.

    sample every few seconds ──► streaks: busy shards, idle neighbours, too few or too many members, each since when
                             ──► a streak that lasts long enough ──► decision with the rule that fired and its inputs

Invariants: at most one change of shards is decided at a time, none while another is under way, none of a family in its
cool-down, and no more an hour than the policy says. A family has its least and its most shards, and the members have
theirs. No split leads to a merge under the same load: a shard that is split for its CPU takes more than three times
what idle neighbours take, and one that fell behind is merged only once it gets far less input. A streak starts over
after a change, and under a new leader, who takes over from the log what was changed when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from math import ceil, inf
from typing import Final

from broadsheet.consumer.elastic.scaling_policy import ScalingPolicy
from broadsheet.wire.key_range import KeyRange

HOUR_SECONDS: Final = 3600.0
FAMILY_RATE: Final = "family_bytes_per_s"
"""Input of a change of shards: bytes a second that the family gets; each of its shards reads all of them."""

MEMBERS: Final = "members"
"""Input of a scale: how many members are wanted from then on."""


class ScalingAction(StrEnum):
    """Kinds of decisions."""

    SPLIT = "split"
    """A shard gives a part of its keys to a new one."""
    MERGE = "merge"
    """A shard takes over the keys of its neighbour."""
    SCALE = "scale"
    """Another number of members is wanted."""
    WARN = "warn"
    """A shard is busy, and no split would help."""


class ScalingRule(StrEnum):
    """Rules that decide."""

    BUSY_CPU = "busy-cpu"
    BEHIND_AND_GROWING = "behind-and-growing"
    ONE_HOT_KEY = "one-hot-key"
    IDLE_NEIGHBOURS = "idle-neighbours"
    MEMBERS_BUSY = "members-busy"
    MEMBERS_IDLE = "members-idle"
    MEMBERS_BOUNDS = "members-bounds"
    """The bounds, or a beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSample:
    """One shard, as its primary reports it."""

    shard_id: str
    family: str
    owned: KeyRange
    serves: bool = True
    """Whether it has a primary."""
    cpu_ratio: float = 0.0
    behind_seconds: float = 0.0
    bytes_per_second: float = 0.0
    median_group: int = 0
    """First group of the upper half of the load; 0: unknown."""
    busiest_group_ratio: float = 0.0
    """0: unknown."""
    state_bytes: int = 0

    @property
    def cut(self) -> int:
        """The first group of the upper part of a split; 0: the range has one group."""
        if self.owned.begin < self.median_group < self.owned.end:
            return self.median_group
        middle = (self.owned.begin + self.owned.end) // 2
        return middle if middle > self.owned.begin else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """Sample of a cluster, on which decisions are taken."""

    at_seconds: float
    """Of a monotonic clock."""
    shards: Sequence[ShardSample]
    cpu_ratio: float
    """Of all replicas together, also of standbys."""
    members: int
    """That stay."""
    under_way: int = 0
    """Splits and merges that are not over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """A decision, and what it was made on."""

    action: ScalingAction
    rule: ScalingRule
    inputs: Mapping[str, float]
    shard_id: str = ""
    """Of a merge: the neighbour with the lower keys, which stays. Empty: it is about members."""
    family: str = ""
    absorbed_id: str = ""
    """Of a merge: the shard that goes."""
    at_group: int = 0
    """Of a split: the first group of the new shard."""
    members: int = 0
    """Of a scale: how many are wanted."""


@dataclass(frozen=True, slots=True)
class _Busy:
    cpu_since: float | None = None
    behind_since: float | None = None
    behind_seconds: float = 0.0
    """When `behind_since` began."""


@dataclass(frozen=True, slots=True)
class _Members:
    wanted: int
    more_since: float | None = None
    fewest: int = 0
    """Wanted at any time since `more_since`."""
    less_since: float | None = None
    most: int = 0
    """Wanted at any time since `less_since`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """State that is kept from sample to sample."""

    busy: Mapping[str, _Busy] = field(default_factory=dict)
    """By shard."""
    idle_since: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By neighbours."""
    changes: tuple[tuple[float, str], ...] = ()
    """(time, family) of the changes of the last hour, the oldest first."""
    told: tuple[tuple[float, str], ...] = ()
    """(time, shard) of warnings and refusals of the last hour, the oldest first."""
    owned: Mapping[str, KeyRange] = field(default_factory=dict)
    """By shard, as it was sampled last."""
    moved: Mapping[str, float] = field(default_factory=dict)
    """When ranges of a family were seen to have changed that had not been decided here, by family: operators split and
    merge, too, and a family cools down after each change."""
    behind_rates: Mapping[str, float] = field(default_factory=dict)
    """Bytes a second that a family got when it was last split because it fell behind, by family."""
    members: _Members | None = None

    @property
    def wanted_members(self) -> int | None:
        """Number of wanted members; None: that is not decided."""
        return None if self.members is None else self.members.wanted

    def with_members(self, wanted: int) -> ScalingState:
        """Return the state of a leader whose predecessor wanted so many members."""
        return replace(self, members=_Members(wanted))

    def with_change(self, at_seconds: float, decision: ScalingDecision) -> ScalingState:
        """Return the state after a change of a family's shards."""
        family, rates = decision.family, self.behind_rates
        if decision.rule is ScalingRule.BEHIND_AND_GROWING:
            rates = {**rates, family: decision.inputs[FAMILY_RATE]}
        return replace(self, changes=(*self.changes, (at_seconds, family)), behind_rates=rates)

    def with_told(self, at_seconds: float, shard_id: str) -> ScalingState:
        """Return the state after a warning about a shard, or a refusal: neither is repeated within the hour."""
        return replace(self, told=(*self.told, (at_seconds, shard_id)))


def decide(
    sample: ClusterSample, state: ScalingState, policy: ScalingPolicy
) -> tuple[ScalingState, Sequence[ScalingDecision]]:
    """Return the state after a sample, and what is decided; carried out, or refused, before the next sample.

    A caller who cannot carry a change out replaces `with_change` by `with_told` (`refused`).
    """
    now = sample.at_seconds
    state = _observed(sample, state, policy)
    members, scaled = _scale(sample, state.members, policy)
    state = replace(state, members=members)
    change = next(_changes(sample, state, policy), None)
    if change is None:
        return state, scaled
    if change.action is ScalingAction.WARN:
        return state.with_told(now, change.shard_id), (*scaled, change)
    ended = _without_streaks(state, sample, change.family)
    return ended.with_change(now, change), (*scaled, change)


def refused(state: ScalingState, decision: ScalingDecision) -> ScalingState:
    """Return the state if the change that was decided last is not carried out: it is not repeated within the hour."""
    assert state.changes, "it was just decided"
    (at_seconds, _), changes = state.changes[-1], state.changes[:-1]
    return replace(state, changes=changes).with_told(at_seconds, decision.shard_id)


def _observed(sample: ClusterSample, state: ScalingState, policy: ScalingPolicy) -> ScalingState:
    """Bring all streaks up to a sample; what is not in it is forgotten."""
    now = sample.at_seconds
    moved = {
        family: at for family, at in state.moved.items() if now - at < policy.cool_down_seconds
    }
    decided = {family for at, family in state.changes if now - at < policy.cool_down_seconds}
    for family in _reshaped(sample, state) - decided:
        moved[family] = now
        state = _without_streaks(state, sample, family)
    busy = {
        each.shard_id: _busy_after(each, state.busy.get(each.shard_id, _Busy()), now, policy)
        for each in sample.shards
    }
    idle = {
        (low.shard_id, high.shard_id): state.idle_since.get((low.shard_id, high.shard_id), now)
        for low, high in _neighbours(sample.shards)
        if _are_idle(low, high, policy)
        and _gets_less(low.family, _rate_of(low.family, sample), state, policy)
    }
    return replace(
        state,
        busy=busy,
        idle_since=idle,
        changes=_of_last_hour(state.changes, now),
        told=_of_last_hour(state.told, now),
        owned={each.shard_id: each.owned for each in sample.shards},
        moved=moved,
    )


def _reshaped(sample: ClusterSample, state: ScalingState) -> set[str]:
    """Return the families of which a shard has another range than at the last sample."""
    return {
        each.family
        for each in sample.shards
        if state.owned.get(each.shard_id, each.owned) != each.owned
    }


def _busy_after(shard: ShardSample, before: _Busy, now: float, policy: ScalingPolicy) -> _Busy:
    cpu_since = behind_since = None
    behind_seconds = 0.0
    if shard.cpu_ratio > policy.busy_cpu_ratio:
        cpu_since = now if before.cpu_since is None else before.cpu_since
    if shard.behind_seconds > policy.behind_seconds_max:
        behind_since, behind_seconds = before.behind_since, before.behind_seconds
        # One that catches up starts over at each step.
        if behind_since is None or shard.behind_seconds < behind_seconds:
            behind_since, behind_seconds = now, shard.behind_seconds
    return _Busy(cpu_since, behind_since, behind_seconds)


def _neighbours(shards: Sequence[ShardSample]) -> Iterator[tuple[ShardSample, ShardSample]]:
    """Yield the pairs of a family whose ranges touch, the lower one first."""
    for low, high in pairwise(sorted(shards, key=lambda each: (each.family, each.owned))):
        if low.family == high.family and low.owned.end == high.owned.begin:
            yield low, high


def _are_idle(low: ShardSample, high: ShardSample, policy: ScalingPolicy) -> bool:
    is_behind = max(low.behind_seconds, high.behind_seconds) > policy.behind_seconds_max
    return (
        low.serves
        and high.serves
        and low.cpu_ratio + high.cpu_ratio < policy.idle_cpu_ratio
        and max(low.state_bytes, high.state_bytes) < policy.merged_bytes_max
        and not is_behind
    )


def _gets_less(family: str, rate: float, state: ScalingState, policy: ScalingPolicy) -> bool:
    """Report whether a family gets far less than when it had to be split because it fell behind."""
    return rate < state.behind_rates.get(family, inf) * policy.merged_rate_ratio


def _changes(
    sample: ClusterSample, state: ScalingState, policy: ScalingPolicy
) -> Iterator[ScalingDecision]:
    """Yield the changes that are due and allowed, the most urgent first; only the first one is made."""
    sizes = Counter(each.family for each in sample.shards)
    may_change = not sample.under_way and len(state.changes) < policy.changes_per_hour_max
    may_tell = len(state.told) < policy.changes_per_hour_max
    told = {shard_id for _, shard_id in state.told}
    for shard, rule in _busy_shards(sample, state, policy):
        if _cools_down(shard.family, state, sample.at_seconds, policy):
            continue
        inputs = _inputs_of(shard) | {FAMILY_RATE: _rate_of(shard.family, sample)}
        cannot = shard.busiest_group_ratio > policy.one_group_ratio_max or not shard.cut
        if cannot and may_tell and shard.shard_id not in told:
            yield _of_shard(ScalingAction.WARN, ScalingRule.ONE_HOT_KEY, shard, inputs)
        # A refused split is tried again after an hour.
        if cannot or shard.shard_id in told or not may_change:
            continue
        if sizes[shard.family] < policy.family_shards_max:
            yield replace(_of_shard(ScalingAction.SPLIT, rule, shard, inputs), at_group=shard.cut)
    if may_change and may_tell:
        yield from _merges(sample, state, policy, sizes, told)


def _busy_shards(
    sample: ClusterSample, state: ScalingState, policy: ScalingPolicy
) -> Iterator[tuple[ShardSample, ScalingRule]]:
    """Yield the shards that are busy for long enough, and by which rule; the busiest first."""
    now = sample.at_seconds
    ranked = sorted(
        sample.shards, key=lambda each: (-each.cpu_ratio, -each.behind_seconds, each.shard_id)
    )
    for each in ranked:
        busy = state.busy[each.shard_id]
        if busy.cpu_since is not None and now - busy.cpu_since >= policy.busy_seconds:
            yield each, ScalingRule.BUSY_CPU
        elif (
            busy.behind_since is not None
            and now - busy.behind_since >= policy.busy_seconds
            and each.behind_seconds > busy.behind_seconds
        ):
            yield each, ScalingRule.BEHIND_AND_GROWING


def _merges(
    sample: ClusterSample,
    state: ScalingState,
    policy: ScalingPolicy,
    sizes: Mapping[str, int],
    told: set[str],
) -> Iterator[ScalingDecision]:
    now = sample.at_seconds
    for low, high in _neighbours(sample.shards):
        since = state.idle_since.get((low.shard_id, high.shard_id))
        if since is None or now - since < policy.idle_seconds:
            continue
        if sizes[low.family] <= policy.family_shards_min or low.shard_id in told:
            continue
        if _cools_down(low.family, state, now, policy):
            continue
        inputs = {
            FAMILY_RATE: _rate_of(low.family, sample),
            "cpu": low.cpu_ratio + high.cpu_ratio,
            "idle_s": now - since,
            "state_bytes": float(low.state_bytes + high.state_bytes),
        }
        merge = _of_shard(ScalingAction.MERGE, ScalingRule.IDLE_NEIGHBOURS, low, inputs)
        yield replace(merge, absorbed_id=high.shard_id)


def _cools_down(family: str, state: ScalingState, now: float, policy: ScalingPolicy) -> bool:
    changes = (*state.changes, *((at, each) for each, at in state.moved.items()))
    return any(each == family and now - at < policy.cool_down_seconds for at, each in changes)


def _rate_of(family: str, sample: ClusterSample) -> float:
    return max(each.bytes_per_second for each in sample.shards if each.family == family)


def _inputs_of(shard: ShardSample) -> dict[str, float]:
    return {
        "cpu": shard.cpu_ratio,
        "behind_s": shard.behind_seconds,
        "busiest_group": shard.busiest_group_ratio,
        "at_group": float(shard.cut),
    }


def _of_shard(
    action: ScalingAction, rule: ScalingRule, shard: ShardSample, inputs: Mapping[str, float]
) -> ScalingDecision:
    return ScalingDecision(
        action=action, rule=rule, inputs=inputs, shard_id=shard.shard_id, family=shard.family
    )


def _without_streaks(state: ScalingState, sample: ClusterSample, family: str) -> ScalingState:
    changed = {each.shard_id for each in sample.shards if each.family == family}
    return replace(
        state,
        busy={shard_id: each for shard_id, each in state.busy.items() if shard_id not in changed},
        idle_since={
            pair: since for pair, since in state.idle_since.items() if pair[0] not in changed
        },
    )


def _scale(
    sample: ClusterSample, before: _Members | None, policy: ScalingPolicy
) -> tuple[_Members | None, tuple[ScalingDecision, ...]]:
    """Return what is remembered of members, and the decision if another number is wanted from now on."""
    if not policy.members_max:
        return None, ()
    now = sample.at_seconds
    known = _Members(sample.members) if before is None else before
    room = policy.busy_cpu_ratio * policy.member_cores
    more = _bounded(ceil(sample.cpu_ratio / room), policy)
    less = _bounded(ceil(sample.cpu_ratio / (room * (1.0 - policy.members_slack_ratio))), policy)
    known = _members_after(known, more, less, now)
    wanted, rule = known.wanted, ScalingRule.MEMBERS_BOUNDS
    if known.more_since is not None and now - known.more_since >= policy.members_up_seconds:
        wanted, rule = known.fewest, ScalingRule.MEMBERS_BUSY
    elif known.less_since is not None and now - known.less_since >= policy.members_down_seconds:
        wanted, rule = known.most, ScalingRule.MEMBERS_IDLE
    wanted = _bounded(wanted, policy)
    if before is not None and wanted == before.wanted:
        return known, ()
    inputs = {
        "cpu": sample.cpu_ratio,
        "present": float(sample.members),
        "before": float(known.wanted),
        MEMBERS: float(wanted),
    }
    decision = ScalingDecision(action=ScalingAction.SCALE, rule=rule, inputs=inputs, members=wanted)
    return _Members(wanted), (decision,)


def _members_after(known: _Members, more: int, less: int, now: float) -> _Members:
    """Bring the streaks of too few and too many members up to a sample.

    Args:
        known: Before.
        more: Needed so that none is too busy.
        less: Needed so that none is nearly too busy; at least `more`.
        now: Of the sample, seconds.
    """
    if more > known.wanted:
        since = known.more_since
        fewest = more if since is None else min(more, known.fewest)
        return _Members(known.wanted, now if since is None else since, fewest)
    if less < known.wanted:
        since = known.less_since
        most = less if since is None else max(less, known.most)
        return _Members(known.wanted, less_since=now if since is None else since, most=most)
    return _Members(known.wanted)


def _bounded(members: int, policy: ScalingPolicy) -> int:
    return max(policy.members_min, min(policy.members_max, members))


def _of_last_hour(
    noted: tuple[tuple[float, str], ...], now: float
) -> tuple[tuple[float, str], ...]:
    return tuple(each for each in noted if now - each[0] < HOUR_SECONDS)
