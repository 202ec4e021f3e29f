"""An operator's choices about scaling: when shards are split or merged, and how many members are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MINUTE_SECONDS = 60.0


class ScalingMode(StrEnum):
    """Modes: what the leader does by itself."""

    OFF = "off"
    """It decides nothing."""
    OBSERVE = "observe"
    """It decides and logs, and does nothing."""
    ACT = "act"
    """It does what it decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """Rules of scaling. Durations are seconds, CPU is in cores kept busy."""

    mode: ScalingMode = ScalingMode.OFF
    sample_seconds: float = 5.0
    """Time between two samples of the load."""
    members_min: int = 1
    members_max: int = 0
    """Bounds of the wanted members; a maximum of 0: their number is not decided."""
    family_shards_min: int = 1
    family_shards_max: int = 8
    """Bounds of the shards of one family; a maximum of 1 splits none."""
    member_cores: float = 1.0
    """Cores that the shards of one member can keep busy: one, if their callbacks are Python."""

    busy_cpu_ratio: float = 0.7
    """A shard that takes more is busy, and members are wanted until each has no more of its cores taken."""
    behind_seconds_max: float = 10.0
    """A shard that is further behind, and falls behind further, is busy, too."""
    busy_seconds: float = MINUTE_SECONDS
    """A shard that is busy for so long without a break is split."""
    one_group_ratio_max: float = 0.6
    """A shard whose busiest group of keys has a larger part of its load is not split: it would stay busy."""

    idle_cpu_ratio: float = 0.2
    """Two neighbours that take less together are idle."""
    idle_seconds: float = 30 * MINUTE_SECONDS
    """Two neighbours that are idle for so long without a break are merged."""
    merged_bytes_max: int = 64 << 20
    """Neighbours of which one has more state are not merged."""
    merged_rate_ratio: float = 0.5
    """A family that was split because it fell behind is merged only below this part of the input that it had then."""

    cool_down_seconds: float = 5 * MINUTE_SECONDS
    """Least time between two changes of one family."""
    changes_per_hour_max: int = 6
    """Of all families. As many warnings and refusals are told an hour."""
    members_up_seconds: float = 30.0
    members_down_seconds: float = 10 * MINUTE_SECONDS
    """More, or fewer, members are wanted once the load says so for so long without a break."""
    members_slack_ratio: float = 0.1
    """Fewer members are wanted only if they have so much room left: load that varies by less moves nothing."""
