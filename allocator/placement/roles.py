"""Choice of the replicas that a solve may move: a small network that is nearly always enough.

A replica is *fixed* or *loose*. Items whose fixed replicas are in the same zones and whose loose one is on the same
member are one class to the network, regardless of their other replicas: a million items become some thousand classes.
These are loose: failed replicas, replicas on drained members, and on each overfull member as many as it must give away,
plus some more; items that lack a replica or a zone take part too. If prices show that a fixed replica should move, its
item is *opened*: all its replicas become loose. So fixing costs time at worst, never quality.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from broadsheet.allocator.placement.columns import Bools, Ints, PlacementColumns
from broadsheet.allocator.placement.problem import ZONES_WANTED

SPARE = 16
"""Loose replicas on a member beyond 5/4 of those it must give away, so that there is a choice."""


@dataclass(slots=True, eq=False)
class Roles:
    """The network's view of each item."""

    loose: Bools
    """(n, c)"""
    active: Bools
    """(n,): items that take part, loose replicas or not."""

    def open(self, columns: PlacementColumns, rows: Ints) -> None:
        """Make all replicas of items loose."""
        self.loose[rows] = columns.held[rows]
        self.active[rows] = True


def first_roles(columns: PlacementColumns) -> Roles:
    """Return initial roles that usually solve the problem at the first attempt."""
    held = columns.held
    count = held.sum(axis=1)
    by_zone = columns.count_by_zone(held)
    kept = columns.kept_zones
    one_zone = (
        (count >= ZONES_WANTED)
        & (((by_zone > 0) & kept).sum(axis=1) < ZONES_WANTED)
        & (int(kept.sum()) >= ZONES_WANTED)
    )
    drained = columns.drain_cost[columns.current] > 0
    roles = Roles(loose=held & (columns.avoided | drained), active=count < columns.replication)
    roles.active |= roles.loose.any(axis=1)
    over = count > columns.replication
    roles.open(columns, np.flatnonzero(over))
    _loosen(columns, roles, one_zone & ~over)
    loads = np.bincount(columns.current[held], minlength=columns.none)[: columns.none]
    _open_overfull(columns, roles, loads)
    return roles


def _to_give(columns: PlacementColumns, loads: Ints) -> Ints:
    """Return how many replicas each member may have to give away, (m,)."""
    floors = np.array([window.floor for window in columns.windows], dtype=np.int64)
    ceilings = np.array([window.ceiling for window in columns.windows], dtype=np.int64)
    if columns.problem.objective.moves_before_balance:
        return (loads - columns.limit).clip(min=0)
    missing = int(
        columns.replication.sum() - np.minimum(columns.replication, columns.held.sum(axis=1)).sum()
    )
    short = int((floors - loads).clip(min=0).sum())
    keeps = np.where(columns.staying[:-1] & (short > missing), floors, ceilings)
    return (loads - keeps).clip(min=0)


def _loosen(columns: PlacementColumns, roles: Roles, one_zone: Bools) -> None:
    """Loosen one replica of each item in one zone, and enough on members that must give some away."""
    held = columns.held
    loads = np.bincount(columns.current[held], minlength=columns.none)[: columns.none]
    gives = _to_give(columns, loads)
    quota = np.append(np.where(gives > 0, gives + gives // 4 + SPARE, 0), 0)
    done: Bools = np.asarray(roles.loose.any(axis=1))
    if not (quota.any() or one_zone.any()):
        return
    pressure = np.append(gives / np.maximum(loads, 1), -1.0)
    score = pressure[columns.current] - columns.primary * 2.0
    score = np.where(held, score, -9.0)
    best = score.argmax(axis=1)
    rows = np.flatnonzero(one_zone & ~done)
    roles.loose[rows, best[rows]] = True
    roles.active[rows] = True
    done[rows] = True
    used = np.bincount(columns.current[roles.loose], minlength=columns.none + 1)
    quotas = _Quotas(quota=quota, used=used, done=done)
    free = np.flatnonzero(~done)
    quotas.loosen(columns, roles, free, best[free])
    # If a member has mostly primaries, its loose replicas include primaries.
    for column in range(columns.current.shape[1]):
        if (used < quota).any():
            free = np.flatnonzero(~done & held[:, column])
            quotas.loosen(columns, roles, free, np.full(len(free), column))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Quotas:
    """Quotas of loose replicas by member, and how far they are used. The arrays are changed in place."""

    quota: Ints
    """(m + 1,): loose replicas wanted on each member; the last is for no member, and 0."""
    used: Ints
    """(m + 1,): loose replicas so far."""
    done: Bools
    """(n,): items with a loose replica; each item provides one at most."""

    def loosen(self, columns: PlacementColumns, roles: Roles, rows: Ints, at: Ints) -> None:
        """Loosen the replicas in columns `at` of `rows`, up to their members' quotas."""
        quota, used = self.quota, self.used
        member = columns.current[rows, at]
        wanted = quota[member] > used[member]
        rows, at, member = rows[wanted], at[wanted], member[wanted]
        order = np.argsort(member, kind="stable")
        ordered = member[order]
        begin = np.searchsorted(ordered, ordered, side="left")
        rank = np.empty(len(rows), dtype=np.int64)
        rank[order] = np.arange(len(rows)) - begin
        chosen = rank + used[member] < quota[member]
        rows, at = rows[chosen], at[chosen]
        roles.loose[rows, at] = True
        roles.active[rows] = True
        self.done[rows] = True
        used += np.bincount(member[chosen], minlength=len(used))


def _open_overfull(columns: PlacementColumns, roles: Roles, loads: Ints) -> None:
    """Open all items of members whose fixed replicas alone would exceed their limit."""
    loose = np.bincount(columns.current[roles.loose], minlength=columns.none + 1)[: columns.none]
    overfull = np.append(loads - loose > columns.limit, False)
    if overfull.any():
        roles.open(columns, np.flatnonzero(overfull[columns.current].any(axis=1)))
