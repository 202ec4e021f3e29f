"""A model of a cluster under a load curve, in virtual time: shards do what the load and the decisions make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from broadsheet.consumer.elastic.group_load import GroupSummary, summary_of
from broadsheet.consumer.elastic.scaling import (
    ClusterSample,
    ScalingAction,
    ScalingDecision,
    ScalingState,
    ShardSample,
    decide,
)
from broadsheet.consumer.elastic.scaling_policy import ScalingPolicy
from broadsheet.wire.key_range import ALL_KEYS, GROUPS, KeyRange

SAMPLE_SECONDS = 5.0
CHANGE_SECONDS = 20.0
"""How long a split or a merge is under way."""
ROWS = 1e9
BYTES_PER_CORE = 1e6

Load = Callable[[float], float]
"""Cores that all keys of a family need, by time in seconds."""
Spread = NDArray[np.float64]
"""Parts of the load by group, shape (GROUPS,), with the sum 1."""


def even() -> Spread:
    """Return a load that all groups have alike."""
    return np.full(GROUPS, 1.0 / GROUPS)


def one_hot(ratio: float, group: int = 77) -> Spread:
    """Return a load of which one group has a part."""
    spread = np.full(GROUPS, (1.0 - ratio) / (GROUPS - 1))
    spread[group] = ratio
    return spread


@dataclass(slots=True)
class _Shard:
    shard_id: str
    owned: KeyRange
    behind: float = 0.0
    """Cores × seconds that are not done."""


@dataclass(slots=True)
class Family:
    """The shards of one family."""

    name: str
    load: Load
    spread: Spread = field(default_factory=even)
    cores_max: float = 1.0
    """What one shard's thread gets."""
    cpu_part: float = 1.0
    """Part of the work that is CPU; the rest waits."""
    shards: list[_Shard] = field(default_factory=list)
    made: int = 0
    _spreads: dict[KeyRange, tuple[float, GroupSummary]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shards = [_Shard(self.name, ALL_KEYS)]

    def step(self, now: float, seconds: float) -> list[ShardSample]:
        """Let time pass; return the samples."""
        total = self.load(now)
        samples = []
        for shard in self.shards:
            part, spread = self._spread_of(shard.owned)
            need = total * part
            done = min(self.cores_max, need + shard.behind / seconds)
            shard.behind = max(0.0, shard.behind + (need - done) * seconds)
            samples.append(
                ShardSample(
                    shard_id=shard.shard_id,
                    family=self.name,
                    owned=shard.owned,
                    cpu_ratio=done * self.cpu_part,
                    behind_seconds=shard.behind / done if done else 0.0,
                    bytes_per_second=total * BYTES_PER_CORE,
                    median_group=spread.median_group,
                    busiest_group_ratio=spread.busiest_ratio,
                )
            )
        return samples

    def _spread_of(self, owned: KeyRange) -> tuple[float, GroupSummary]:
        """Return the part of the load that a range has, and how it is spread there."""
        if owned not in self._spreads:
            part = float(self.spread[owned.begin : owned.end].sum())
            self._spreads[owned] = part, summary_of(self.spread * ROWS, owned)
        return self._spreads[owned]

    def apply(self, decision: ScalingDecision) -> None:
        """Carry a change out."""
        (shard,) = [each for each in self.shards if each.shard_id == decision.shard_id]
        if decision.action is ScalingAction.SPLIT:
            self.made += 1
            owned, shard.owned = shard.owned, KeyRange(shard.owned.begin, decision.at_group)
            shard.behind /= 2
            given = KeyRange(decision.at_group, owned.end)
            self.shards.append(_Shard(f"{self.name}-{self.made}", given, shard.behind))
        elif decision.action is ScalingAction.MERGE:
            (gone,) = [each for each in self.shards if each.shard_id == decision.absorbed_id]
            assert shard.owned.end == gone.owned.begin
            shard.owned = KeyRange(shard.owned.begin, gone.owned.end)
            self.shards.remove(gone)


@dataclass(frozen=True, slots=True)
class Made:
    """A decision, when it was made, and what there was then."""

    at_seconds: float
    decision: ScalingDecision
    shards: int
    """Of all families, before."""


@dataclass(slots=True)
class ScaledCluster:
    """Families, members that follow what is wanted, and the decisions."""

    families: list[Family]
    policy: ScalingPolicy
    members: int = 1
    state: ScalingState = field(default_factory=ScalingState)
    now: float = 0.0
    made: list[Made] = field(default_factory=list)
    _busy_until: float = 0.0
    _pending: ScalingDecision | None = None

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.now + seconds
        while self.now < end:
            self._step()

    def decisions(self, *actions: ScalingAction) -> list[Made]:
        """Return the decisions of some kinds."""
        return [each for each in self.made if each.decision.action in actions]

    def _step(self) -> None:
        self.now += SAMPLE_SECONDS
        if self._pending is not None and self.now >= self._busy_until:
            for family in self.families:
                if family.name == self._pending.family:
                    family.apply(self._pending)
            self._pending = None
        shards = [
            each for family in self.families for each in family.step(self.now, SAMPLE_SECONDS)
        ]
        sample = ClusterSample(
            at_seconds=self.now,
            shards=shards,
            cpu_ratio=sum(each.cpu_ratio for each in shards),
            members=self.members,
            under_way=int(self._pending is not None),
        )
        self.state, decisions = decide(sample, self.state, self.policy)
        for each in decisions:
            self.made.append(Made(self.now, each, len(shards)))
            if each.action in (ScalingAction.SPLIT, ScalingAction.MERGE):
                assert self._pending is None
                self._pending, self._busy_until = each, self.now + CHANGE_SECONDS
        self.members = self.state.wanted_members or self.members
