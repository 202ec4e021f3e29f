"""A leader of another program that assigns the same leases: ours does not lead beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLeader:
    """What its row says."""

    name: str
    version: str
    """Changes with each of its signs of life."""
    lease_seconds: float
    """How long it may not change."""


@runtime_checkable
class TellsForeignLeader(Protocol):
    """A store whose leases another program may lead."""

    async def foreign_leaders(self) -> tuple[ForeignLeader, ...]:
        """Return the rows of leaders that did not step down; they may be dead."""
        ...
