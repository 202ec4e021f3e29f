"""What a member says of its own load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allocator.core.load.lag import Lag
from allocator.core.model import ItemId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """What one replica takes."""

    bytes_per_second: float = 0.0
    """Bytes consumed a second."""
    cpu_ratio: float = 0.0
    """CPU seconds a second: 1 is one CPU kept busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """One member's report; already rounded, so that it changes seldom."""

    capacity: int = 0
    """Load that the member can carry beside others; 0: its limit."""
    replicas: Mapping[ItemId, ReplicaLoad] = field(default_factory=dict)
    lags: Mapping[ItemId, Lag] = field(default_factory=dict)
    """Of standbys here that are behind."""
