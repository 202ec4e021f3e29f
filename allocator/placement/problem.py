"""The placement problem, its solution, and the interface between them.

A closed member (exiting or cordoned) gets nothing new, at any cost. Beyond that, the objectives have an order: coverage
first (every item its first replica, then every item its second, …), then two zones an item, then emptying members that
drain, then fair shares, then the fewest moves (`Objective` may swap these two), then kept primaries, then further
zones.

A zone whose members all drain is given up: a replica in it does not count as being in a zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import Objective

ZONES_WANTED = 2
"""Zones that an item with two or more replicas should span, so that one may be lost."""

Desired = Mapping[ItemId, tuple[MemberId, ...]]
"""Members that should hold each item, sorted. Which of them is primary is decided when converging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemMember:
    """A member as the solver sees it."""

    member_id: MemberId
    limit: int
    """The most replicas that it may hold."""
    exiting: bool
    """It wants to leave: its replicas may stay, but it gets no new ones."""
    cordoned: bool = False
    """An operator cordoned it: its replicas may stay, but it gets no new ones."""
    capacity: int = 0
    """Load that it can carry, in units of its own against other members; 0: its limit."""
    drain_cost: int = 0
    """The cost of each replica that stays on it, if it is drained; 0: it is not. Of several the oldest costs most, and
    is emptied first if there is no room for all."""

    @property
    def closed(self) -> bool:
        """True if the member gets nothing new."""
        return self.exiting or self.cordoned


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemItem:
    """An item as the solver sees it."""

    item_id: ItemId
    replication: int
    """Replicas wanted."""
    current: tuple[MemberId, ...]
    """Live members that hold it now, sorted."""
    primary: MemberId | None
    """The one of `current` at slot 0."""
    avoided: tuple[MemberId, ...] = ()
    """Those of `current` whose replica has failed for too long: better placed elsewhere."""
    load: int = 1
    """The load of one replica on its member, quantised; from 1. If all are 1, loads are counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Place `items` on `members`."""

    members: tuple[ProblemMember, ...]
    """Sorted by id."""
    items: tuple[ProblemItem, ...]
    """Sorted by id."""
    objective: Objective = field(default_factory=Objective)


class Solver(Protocol):
    """Port that decides the desired placement. Called off the event loop, on frozen values."""

    def solve(self, problem: Problem) -> Desired:
        """Return the members of every item; an item that gets none has an empty tuple."""
        ...


def usable(members: Iterable[ProblemMember]) -> list[ProblemMember]:
    """Return the members that may hold anything."""
    return [member for member in members if member.limit > 0]


def kept_zones(members: Iterable[ProblemMember]) -> frozenset[str]:
    """Return the zones that are not given up: those with a usable member that is not drained."""
    return frozenset(m.member_id.zone for m in usable(members) if not m.drain_cost)


def zones_spanned(members: Iterable[MemberId]) -> int:
    """Return how many zones the members span."""
    return len({member.zone for member in members})
