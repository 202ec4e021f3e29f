"""Classes of items that are alike to the network, given their roles, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocator.core.placement.columns import Bools, Columns, Ints
from allocator.core.placement.roles import Roles

PORT_KINDS = 4
"""Kinds of kept replicas by cost: primary or not, failed or not."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Shapes: k classes, a active items, p loose replicas of a class at most, z zones."""

    items: Ints
    """(a,): rows of active items, class by class."""
    begins: Ints
    """(k + 1,): where each class begins in `items`."""
    replication: Ints
    """(k,)"""
    entered: Ints
    """(k, z): fixed replicas of each item by zone."""
    held_closed: Ints
    """(k, z): closed members that each item holds, by zone."""
    ports: Ints
    """(k, p): members with loose replicas, filled up with none."""
    primary: Ints
    """(k, p): 1 where that is the primary."""
    avoided: Ints
    """(k, p): 1 where that should not be kept."""
    explicit: Bools
    """(k,): whether its items have arcs of their own."""

    @property
    def size(self) -> Ints:
        """(k,): items of each class."""
        return np.diff(self.begins)

    def alike(self, rows: Ints) -> Ints:
        """Return the rows of all classes that active items belong to."""
        class_of = np.repeat(np.arange(len(self.begins) - 1), self.size)
        chosen: Ints = np.unique(class_of[np.isin(self.items, rows)])
        return self.items[np.isin(class_of, chosen)]


def classes_of(columns: Columns, roles: Roles, explicit: Ints) -> Classes:
    """Return the classes of all active items.

    Args:
        columns: The problem.
        roles: Which replicas are loose.
        explicit: Rows of items with arcs of their own, rising.
    """
    rows = np.flatnonzero(roles.active)
    fixed = columns.held & ~roles.loose
    entered = columns.count_by_zone(fixed)[rows]
    closed = columns.closed_held()[rows]
    kind = columns.primary[rows] + 2 * columns.avoided[rows]
    ports = np.where(
        roles.loose[rows], columns.current[rows].astype(np.int64) * PORT_KINDS + kind, 0
    )
    ports[~roles.loose[rows]] = columns.none * PORT_KINDS
    ports.sort(axis=1)
    width = int((ports < columns.none * PORT_KINDS).sum(axis=1).max(initial=0))
    ports = ports[:, :width]
    own = np.zeros(len(rows), dtype=np.bool_)
    own[np.searchsorted(rows, explicit)] = True
    likeness = np.concatenate(
        [columns.replication[rows, None], own[:, None], entered, closed, ports], axis=1
    )
    order, begins = _grouped(likeness)
    first = order[begins[:-1]]
    port_kind = ports[first] % PORT_KINDS
    return Classes(
        items=rows[order],
        begins=begins,
        replication=columns.replication[rows[first]],
        entered=entered[first],
        held_closed=closed[first],
        ports=ports[first] // PORT_KINDS,
        primary=port_kind % 2,
        avoided=port_kind // 2,
        explicit=own[first],
    )


def _grouped(likeness: Ints) -> tuple[Ints, Ints]:
    """Return an order of rows that puts equal ones together, and where each group begins, and the end."""
    order = np.lexsort(likeness.T[::-1])
    ordered = likeness[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return order, np.append(np.flatnonzero(new), len(order))
