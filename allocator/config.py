"""Times of the allocation loop, and the runtime that it works with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

from broadsheet.allocator.metrics import AllocatorMetrics
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.runtime.clock import Clock, SystemClock

T = TypeVar("T")


class Offload(Protocol):
    """A port that runs a function away from the event loop, and returns its result."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Run `work`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Time, chance, threads and metrics of a member, which all parts of its allocation share; simulations set them."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=Random)
    """Source of jitter."""
    offload: Offload = asyncio.to_thread
    """Runs long computations away from the event loop."""
    metrics: AllocatorMetrics = field(default_factory=AllocatorMetrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationConfig:
    """Times of the allocation loop, and an operator's policy."""

    recheck_seconds: float = 30.0
    """Longest pause between two rounds of a leader, with up to a tenth of jitter."""
    audit_seconds: float = 300.0
    """Longest time between two rounds over all items, changed or not."""
    retry_seconds_max: float = 5.0
    """Longest delay before a failed round is retried."""
    replace_failed_after_seconds: float = 60.0
    """How long a standby may stay failed before it is placed elsewhere."""
    decide_seconds_max: float = 600.0
    """A decision that takes longer is abandoned and retried. Another member, if there is one, leads long before."""
    policy: AllocationPolicy = field(default_factory=AllocationPolicy)
