"""What clients together may take of a member's server: each bound is an option of `shardctl serve` and a metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _bound(default: int, explanation: str) -> Any:
    """Return a field; `Any`, because a dataclass turns it into a number."""
    return field(default=default, metadata={"help": explanation})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBounds:
    """Bounds of one member's server; a field's `help` says what it counts.

    A member passes requests on to others over one connection each, so the bound of a connection is no small number.
    """

    calls_max: int = _bound(16_384, "Calls under way.")
    calls_per_connection_max: int = _bound(4_096, "Calls under way on one connection.")
    streams_max: int = _bound(4_096, "Calls under way whose requests or answers are streams.")
    streams_per_connection_max: int = _bound(1_024, "The same on one connection.")
