"""How far replicas are behind: which of several standbys to promote.

Source: rivals promote any standby; Kafka Streams' `acceptable.recovery.lag` is the nearest relative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from allocator.core.model import ItemId, MemberId


@dataclass(frozen=True, slots=True, order=True)
class Lag:
    """What a standby has yet to play, as its member told it last; rounded."""

    seconds: float = 0.0
    """At the rate at which it plays; infinite if it does not get on."""
    behind_bytes: int = 0
    """Of its recovery log."""


Lags: TypeAlias = Mapping[tuple[ItemId, MemberId], Lag]
"""Of replicas that are behind; absent ones have caught up, or have nothing to play."""

CAUGHT_UP = Lag()
