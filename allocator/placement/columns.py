"""A problem as columns: members are numbers, items are rows of arrays.

Rows are the items that want replicas, in the problem's order; the number `members` represents no member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.objective_costs import ArcPiece, outlet
from broadsheet.allocator.placement.problem import Problem, ProblemMember, kept_zones, usable
from broadsheet.allocator.placement.shares import Totals, Window, load_windows

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementColumns:
    """Shapes: n items, c current members at most, m usable members, z zones."""

    problem: Problem
    members: tuple[ProblemMember, ...]
    """Usable ones, by number."""
    zone_of: Ints
    """(m + 1,): zone of each member; of none: z."""
    zones: int
    kept_zones: Bools
    """(z,): zones that are not given up."""
    staying: Bools
    """(m + 1,): members that may get something new."""
    limit: Ints
    """(m,): of each, and no more than there are items."""
    drain_cost: Ints
    """(m + 1,): of none: 0."""
    items: Ints
    """(n,): each row's index in the problem."""
    replication: Ints
    """(n,): attainable, from 1."""
    current: npt.NDArray[np.int32]
    """(n, c): members that hold the item, rising, filled up with none."""
    primary: Bools
    """(n, c): which of them is the primary."""
    avoided: Bools
    """(n, c): which of them should not be kept."""
    windows: tuple[Window, ...]
    """By member."""
    member_arcs: tuple[tuple[ArcPiece, ...], ...]
    """By member."""

    @property
    def none(self) -> int:
        """The number that represents no member."""
        return len(self.members)

    @property
    def drain_cost_max(self) -> int:
        """The greatest cost of a replica on a drained member."""
        return int(self.drain_cost.max(initial=0))

    @property
    def held(self) -> Bools:
        """(n, c): true where `current` has a member."""
        return self.current < self.none

    def closed_held(self) -> Ints:
        """Return how many closed members each item holds, by zone, (n, z)."""
        closed = ~self.staying
        closed[self.none] = False
        return self.count_by_zone(closed[self.current])

    def count_by_zone(self, which: Bools) -> Ints:
        """Return how many of the current members selected by `which` (n, c) are in each zone, (n, z)."""
        counts = np.zeros((len(self.items), self.zones + 1), dtype=np.int64)
        rows = np.arange(len(self.items))
        for column in range(self.current.shape[1]):
            counts[rows, self.zone_of[self.current[:, column]]] += which[:, column]
        return counts[:, : self.zones]


def columns_of(problem: Problem) -> PlacementColumns:
    """Return a problem's columns."""
    members = tuple(usable(problem.members))
    number = {member.member_id: n for n, member in enumerate(members)}
    zones = {zone: n for n, zone in enumerate(sorted({m.member_id.zone for m in members}))}
    none = len(members)
    replication = np.fromiter(
        map(attrgetter("replication"), problem.items), np.int64, len(problem.items)
    ).clip(max=none)
    items = np.flatnonzero(replication > 0)
    # Usually all items want replicas, and then nothing is copied.
    every = len(items) == len(problem.items)
    wanted = problem.items if every else [problem.items[n] for n in items.tolist()]
    current = _padded(list(map(attrgetter("current"), wanted)), number)
    primary = _numbers(list(map(attrgetter("primary"), wanted)), number)
    avoided = np.zeros(current.shape, dtype=np.bool_)
    for row, failed in enumerate(map(attrgetter("avoided"), wanted)):
        if failed:
            avoided[row] = np.isin(current[row], [number[m] for m in failed if m in number])
    staying = [not member.closed for member in members]
    replication = replication[items]
    totals = _totals(problem, members, replication, current)
    windows = load_windows(problem.members, totals, problem.objective)
    return PlacementColumns(
        problem=problem,
        members=members,
        zone_of=np.array([zones[m.member_id.zone] for m in members] + [len(zones)], dtype=np.int64),
        zones=len(zones),
        kept_zones=np.isin(sorted(zones), sorted(kept_zones(members))),
        drain_cost=np.array([*(member.drain_cost for member in members), 0], dtype=np.int64),
        staying=np.array([*staying, False], dtype=np.bool_),
        limit=np.array([member.limit for member in members], dtype=np.int64).clip(max=len(items)),
        items=items,
        replication=replication,
        current=current,
        primary=(current == primary[:, None]) & (current < none),
        avoided=avoided,
        windows=tuple(windows[member.member_id] for member in members),
        member_arcs=_member_arcs(members, windows, len(items)),
    )


def _member_arcs(
    members: Sequence[ProblemMember], windows: Mapping[MemberId, Window], items: int
) -> tuple[tuple[ArcPiece, ...], ...]:
    """Return each member's arc pieces; equal members share them."""
    kinds = [(windows[m.member_id], min(m.limit, items), m.drain_cost) for m in members]
    pieces = {kind: tuple(outlet(*kind)) for kind in set(kinds)}
    return tuple(pieces[kind] for kind in kinds)


def _totals(
    problem: Problem,
    members: tuple[ProblemMember, ...],
    replication: Ints,
    current: npt.NDArray[np.int32],
) -> Totals:
    wanted, items = np.unique(replication, return_counts=True)
    held = np.bincount(current.ravel(), minlength=len(members) + 1)
    return Totals(
        replications=dict(zip(wanted.tolist(), items.tolist(), strict=True)),
        held={member.member_id: int(held[n]) for n, member in enumerate(members)},
    )


def _numbers(ids: Iterable[MemberId | None], number: dict[MemberId, int]) -> npt.NDArray[np.int32]:
    """Return each member's number; each object that represents a member is looked up by value only once."""
    ids = list(ids)
    none = len(number)
    by_object = {
        key: none if m is None else number.get(m, none)
        for key, m in {id(m): m for m in ids}.items()
    }
    return np.fromiter(map(by_object.__getitem__, map(id, ids)), np.int32, len(ids))


def _padded(
    groups: list[tuple[MemberId, ...]], number: dict[MemberId, int]
) -> npt.NDArray[np.int32]:
    lengths = np.fromiter(map(len, groups), np.int64, len(groups))
    width = int(lengths.max(initial=0))
    rows = np.full((len(groups), width), len(number), dtype=np.int32)
    rows[np.arange(width) < lengths[:, None]] = _numbers(chain.from_iterable(groups), number)
    if width > 1:
        rows.sort(axis=1)
    # One column of none, so that no caller has to handle a table without columns.
    if not width:
        return np.full((len(groups), 1), len(number), dtype=np.int32)
    keep = max(1, int((rows < len(number)).sum(axis=1).max(initial=0)))
    return np.ascontiguousarray(rows[:, :keep])
