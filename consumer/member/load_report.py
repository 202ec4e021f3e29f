"""Load reports as they are stored in etcd, and their rounding.

Rounding keeps the reported value while it is nearly right, so that a member writes only changes that matter to a
reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.state.load import (
    Bucket,
    Lag,
    MemberReport,
    ReplicaLoad,
    bucket_of,
    held_bucket,
    value_of,
)
from broadsheet.consumer.elastic.group_load import QUANTILES, UNKNOWN, GroupSummary
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import GROUPS
from broadsheet.wire.load_pb2 import MemberLoad

STEP_RATIO = 1.25
"""Between what is told and what could be told next."""
BYTES_PER_SECOND_LEAST = 1_000.0
CPU_RATIO_LEAST = 0.001
"""Less than these is told as nothing."""
LAG_STEP_RATIO = 2.0
LAG_BYTES_LEAST = 1 << 20
"""A standby that is behind by less than this counts as caught up."""
CAPACITY_MAX = 1 << 40
BEHIND_SECONDS_LEAST = 1.0
STATE_STEP_RATIO = 2.0
STATE_BYTES_LEAST = 1 << 20
GROUP_STEP = GROUPS // 64
"""A told median of the groups stays until the measured one is so far from it."""
SHARE_STEP = 0.05
"""The same of the busiest group's part."""


_FROM_ZERO = (
    "bytes_per_second",
    "cpu_seconds_per_second",
    "behind_seconds",
    "busiest_group_ratio",
)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A replica's load in buckets."""

    bytes_per_second: Bucket = None
    cpu_ratio: Bucket = None
    behind_seconds: Bucket = None
    state_bytes: Bucket = None
    median_group: int = 0
    busiest_group_ratio: float = 0.0
    quantile_groups: tuple[int, ...] = ()

    def after(self, load: ReplicaLoad) -> Rounded:
        """Return the load to report once `load` is measured."""
        is_near = (
            self.median_group > 0
            and load.median_group > 0
            and abs(self.median_group - load.median_group) < GROUP_STEP
        )
        share = load.busiest_group_ratio
        holds_share = share > 0.0 and abs(self.busiest_group_ratio - share) < SHARE_STEP
        return Rounded(
            held_bucket(
                self.bytes_per_second,
                load.bytes_per_second,
                STEP_RATIO,
                least=BYTES_PER_SECOND_LEAST,
            ),
            held_bucket(self.cpu_ratio, load.cpu_ratio, STEP_RATIO, least=CPU_RATIO_LEAST),
            held_bucket(
                self.behind_seconds, load.behind_seconds, STEP_RATIO, least=BEHIND_SECONDS_LEAST
            ),
            held_bucket(
                self.state_bytes, load.state_bytes, STATE_STEP_RATIO, least=STATE_BYTES_LEAST
            ),
            self.median_group if is_near else load.median_group,
            self.busiest_group_ratio if holds_share else share,
            self.quantile_groups
            if _are_near(self.quantile_groups, load.quantile_groups)
            else load.quantile_groups,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedReport:
    """The load that a member reports."""

    capacity: int = 0
    replicas: Mapping[ItemId, Rounded] = field(default_factory=dict)
    lags: Mapping[ItemId, Lag] = field(default_factory=dict)

    def after_lags(self, lags: Mapping[ItemId, Lag]) -> RoundedReport:
        """Return the report after the lags of standbys were measured."""
        told: dict[ItemId, Lag] = {}
        for item_id, lag in sorted(lags.items()):
            before = self.lags.get(item_id)
            held = None
            if before is not None:
                held = bucket_of(before.behind_bytes, LAG_STEP_RATIO, least=LAG_BYTES_LEAST)
            bucket = held_bucket(held, lag.behind_bytes, LAG_STEP_RATIO, least=LAG_BYTES_LEAST)
            if bucket is not None:
                # The time is reported as of the same moment as the bytes, because rounding both would double the
                # writes.
                told[item_id] = before if before is not None and bucket == held else lag
        return replace(self, lags=told)

    def after(self, loads: Mapping[ItemId, ReplicaLoad]) -> RoundedReport:
        """Return the report after these measurements; replicas that have left are dropped."""
        return replace(
            self,
            replicas={
                item_id: self.replicas.get(item_id, Rounded()).after(load)
                for item_id, load in sorted(loads.items())
            },
        )

    def encode(self) -> bytes:
        """Return the message; empty if there is nothing to report."""
        shards = [
            MemberLoad.ShardLoad(
                shard_id=item_id,
                bytes_per_second=value_of(each.bytes_per_second, STEP_RATIO),
                cpu_seconds_per_second=value_of(each.cpu_ratio, STEP_RATIO),
                behind_seconds=value_of(each.behind_seconds, STEP_RATIO),
                median_group=each.median_group,
                busiest_group_ratio=each.busiest_group_ratio,
                state_bytes=round(value_of(each.state_bytes, STATE_STEP_RATIO)),
                quantile_groups=each.quantile_groups,
            )
            for item_id, each in self.replicas.items()
            if each != Rounded()
        ]
        standbys = [
            MemberLoad.StandbyLag(
                shard_id=item_id,
                behind_bytes=lag.behind_bytes,
                behind_seconds=lag.seconds if math.isfinite(lag.seconds) else -1.0,
            )
            for item_id, lag in self.lags.items()
        ]
        return MemberLoad(
            capacity=self.capacity, shards=shards, standbys=standbys
        ).SerializeToString(deterministic=True)


async def reported_spread(etcd: Etcd, key_space: KeySpace, shard_id: str) -> GroupSummary:
    """Return how a shard's load is spread over its groups of keys, as its primary's member reports it.

    Raises:
        EtcdError: etcd does not answer.
    """
    for assignment in key_space.assignments_of(ItemId(shard_id)):
        if assignment.slot != PRIMARY_SLOT:
            continue
        key = AuxiliaryKeys(key_space.keys.root).load(assignment.member_id)
        for kv in (await etcd.get_range(key)).kvs:
            # The leader's placement tells of those that cannot be decoded.
            with suppress(ValidationError):
                load = decode_report(kv.value).replicas.get(ItemId(shard_id))
                if load is not None:
                    return GroupSummary(
                        load.median_group, load.busiest_group_ratio, load.quantile_groups
                    )
    return UNKNOWN


def decode_report(value: bytes) -> MemberReport:
    """Return a member's report.

    Raises:
        ValidationError: it is no MemberLoad, or a value is out of its bounds; the error names it.
    """
    message = MemberLoad()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise ValidationError("load", f"expected a broadsheet.v1.MemberLoad: {error}") from error
    if message.capacity > CAPACITY_MAX:
        raise ValidationError(
            "capacity", f"expected at most {CAPACITY_MAX}, got {message.capacity}"
        )
    for index, shard in enumerate(message.shards):
        for name in _FROM_ZERO:
            rate = getattr(shard, name)
            if not (math.isfinite(rate) and rate >= 0.0):
                raise ValidationError(
                    f"shards[{index}].{name}", f"expected a finite number from 0, got {rate}"
                )
        if shard.median_group >= GROUPS:
            raise ValidationError(
                f"shards[{index}].median_group",
                f"expected 0 to {GROUPS - 1}, got {shard.median_group}",
            )
        _check_quantiles(f"shards[{index}].quantile_groups", shard.quantile_groups)
    return MemberReport(
        capacity=message.capacity,
        replicas={
            ItemId(shard.shard_id): ReplicaLoad(
                bytes_per_second=shard.bytes_per_second,
                cpu_ratio=shard.cpu_seconds_per_second,
                behind_seconds=shard.behind_seconds,
                median_group=shard.median_group,
                busiest_group_ratio=shard.busiest_group_ratio,
                state_bytes=shard.state_bytes,
                quantile_groups=tuple(shard.quantile_groups),
            )
            for shard in message.shards
        },
        lags={ItemId(each.shard_id): _lag(each) for each in message.standbys},
    )


def _are_near(held: tuple[int, ...], measured: tuple[int, ...]) -> bool:
    return len(held) == len(measured) and all(
        abs(one - other) < GROUP_STEP for one, other in zip(held, measured, strict=True)
    )


def _check_quantiles(name: str, groups: Sequence[int]) -> None:
    if groups and len(groups) != QUANTILES - 1:
        raise ValidationError(name, f"expected none or {QUANTILES - 1} groups, got {len(groups)}")
    if list(groups) != sorted(groups) or any(not 0 < group < GROUPS for group in groups):
        raise ValidationError(
            name, f"expected groups from 1 to {GROUPS - 1} that ascend, got {list(groups)}"
        )


def _lag(message: MemberLoad.StandbyLag) -> Lag:
    seconds = message.behind_seconds
    return Lag(seconds if seconds >= 0.0 else math.inf, message.behind_bytes)
