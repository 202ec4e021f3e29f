"""The network of a placement as arrays of arcs, and the conversion of its flow to a placement.

Items that want the same and are on the same members form one *class*: in the network they are one node of `n` times the
capacity. Kept replicas of a class have an arc to their member; new ones go through their zone's *hub*, which all
classes share, so there are a few arcs for each class and zone, not for each class and member.

                       first two zones: free                    n, first of the
             ┌──────────► spread ──┬─ item in its zone
    n each   │   others: `zone`              ▼
    source ──► class                    (class, zone) ── n, kept: free ─────────► member ── `member_arcs` ──► sink
    k-th: k × `cover`  │                      ▲  └─ new: `move` ──► hub of zone ──►  ▲
             └──────────────────────────────┘                      members that stay
               `zone` + `spread`: another of the item in this zone

A hub does not track which item its units belong to. If an item gets a member twice, `unit_assignment` swaps within the
zone; if there is no partner for a swap, the item gets arcs to the members themselves, and the network is solved again.
A closed member has no arc from a hub, so nothing new can reach it. A zone that is given up has no arc from `spread`.

Source: the network of gazette/core allocator (item → item-zone → member → sink) with costs in place of its discharge
order; hubs, classes and costs are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from broadsheet.allocator.placement.arcs import Arcs
from broadsheet.allocator.placement.columns import Bools, Ints, PlacementColumns
from broadsheet.allocator.placement.objective_costs import MOVES_OF_A_FAILED_REPLICA, Scale
from broadsheet.allocator.placement.problem import ZONES_WANTED
from broadsheet.allocator.placement.residual import Placed, Potentials
from broadsheet.allocator.placement.roles import Roles

SOURCE = 0
SINK = 1
FIRST_MEMBER = 2

PORT_KINDS = 4
"""Kinds of kept replicas by cost: primary or not, failed or not."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes of items that are equal to the network, given their roles, as arrays."""

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
    """(k,): whether its items have explicit arcs."""

    @property
    def size(self) -> Ints:
        """(k,): the number of items in each class."""
        return np.diff(self.begins)

    def alike(self, rows: Ints) -> Ints:
        """Return the rows of all classes that contain the given active items."""
        class_of = np.repeat(np.arange(len(self.begins) - 1), self.size)
        chosen: Ints = np.unique(class_of[np.isin(self.items, rows)])
        return self.items[np.isin(class_of, chosen)]


def classes_of(columns: PlacementColumns, roles: Roles, explicit: Ints) -> Classes:
    """Return the classes of all active items.

    Args:
        columns: The problem.
        roles: Which replicas are loose.
        explicit: Rows of items with explicit arcs, in rising order.
    """
    rows = np.flatnonzero(roles.active)
    fixed = columns.held & ~roles.loose
    entered = columns.count_by_zone(fixed)[rows]
    closed = columns.closed_held()[rows]
    kind = columns.primary[rows] + 2 * columns.avoided[rows]
    ports = np.where(
        roles.loose[rows], columns.current[rows].astype(np.int64) * PORT_KINDS + kind, 0
    )
    # Sorts last, so that unused columns can be cut off.
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
    """Return an order of rows that groups equal ones, and where each group begins, and the end."""
    order = np.lexsort(likeness.T[::-1])
    ordered = likeness[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return order, np.append(np.flatnonzero(new), len(order))


class HubNetwork:
    """Nodes: source, sink, members, hubs, then item, spread and zones of each class."""

    def __init__(
        self, columns: PlacementColumns, roles: Roles, classes: Classes, scales: Sequence[Scale]
    ) -> None:
        self._columns = columns
        self._roles = roles
        self._classes = classes
        self._objective = {scale.objective: n for n, scale in enumerate(scales)}
        self._first_hub = FIRST_MEMBER + columns.none
        first_item = self._first_hub + columns.zones
        count = len(classes.replication)
        self._item = first_item + np.arange(count) * (2 + columns.zones)
        self._nodes = first_item + count * (2 + columns.zones)
        self._parts: list[tuple[Ints, Ints, Ints, dict[str, Ints | int]]] = []
        fixed = columns.held & ~roles.loose
        self._base = np.bincount(columns.current[fixed], minlength=columns.none)[: columns.none]
        self._wanted = classes.replication - classes.entered.sum(axis=1)
        self._add_source()
        self._add_zones()
        self._ways = self._add_ways()
        self._hub_ways = self._add_hubs()
        self._add_member_arcs()
        self.arcs, self._kept = self._arcs()

    def _add(self, tail: Ints, head: Ints, capacity: Ints, **units: Ints | int) -> slice:
        begin = sum(len(part[0]) for part in self._parts)
        tail, head, capacity = np.broadcast_arrays(tail, head, capacity)
        units = {name: np.broadcast_to(value, tail.shape).ravel() for name, value in units.items()}
        self._parts.append((tail.ravel(), head.ravel(), capacity.ravel(), units))
        return slice(begin, begin + tail.size)

    def _add_source(self) -> None:
        classes = self._classes
        source = np.array(SOURCE)
        most = int(classes.replication.max(initial=0))
        for replica in range(most):
            mine = (classes.entered.sum(axis=1) <= replica) & (replica < classes.replication)
            self._add(source, self._item[mine], classes.size[mine], cover=replica)
        total = np.array([(self._wanted * classes.size).sum()])
        # The same capacity as in `residual`, whichever items take part: otherwise prices would be invalid for the
        # others.
        unplaced = int(self._columns.replication.max(initial=0)) + 1
        self._add(source, np.array([SINK]), total, cover=unplaced)

    def _add_zones(self) -> None:
        columns, classes = self._columns, self._classes
        size = classes.size[:, None]
        kept = columns.kept_zones
        zoned = (classes.replication >= ZONES_WANTED) & (int(kept.sum()) >= ZONES_WANTED)
        cost = zoned.astype(np.int64)[:, None]
        spanned = ((classes.entered > 0) & kept).sum(axis=1)
        item, spread = self._item, self._item + 1
        first = (ZONES_WANTED - spanned).clip(min=0)
        self._add(item, spread, classes.size * first)
        rest = classes.replication - spanned - first
        self._add(item, spread, classes.size * rest.clip(min=0), zone=zoned.astype(np.int64))
        staying = np.bincount(columns.zone_of[columns.staying], minlength=columns.zones)[
            : columns.zones
        ]
        room = np.minimum(classes.replication[:, None], staying + classes.held_closed)
        zones = self._zone_nodes()
        self._add(spread[:, None], zones, size * ((classes.entered == 0) & (room > 0) & kept))
        further = (room - np.maximum(classes.entered, kept)).clip(min=0)
        self._add(item[:, None], zones, size * further, zone=cost, spread=cost)

    def _zone_nodes(self) -> Ints:
        return self._item[:, None] + 2 + np.arange(self._columns.zones)

    def _add_ways(self) -> tuple[slice, Ints, Ints, Ints]:
        """Add arcs from the zones of classes to members and hubs; return them, and class, zone and member of each."""
        columns, classes = self._columns, self._classes
        hubbed = ~classes.explicit
        to_hub, zone = np.nonzero(np.broadcast_to(hubbed[:, None], (len(hubbed), columns.zones)))
        at, port = np.nonzero(classes.ports < columns.none)
        held = classes.ports[at, port]
        own, their = np.nonzero(~hubbed[:, None] & columns.staying[:-1])
        free = ~(classes.ports[own] == their[:, None]).any(axis=1)
        own, their = own[free], their[free]
        class_of = np.concatenate([to_hub, at, own])
        zone_of = np.concatenate([zone, columns.zone_of[held], columns.zone_of[their]])
        member = np.concatenate([np.full(len(to_hub), -1), held, their])
        new = np.concatenate([np.ones(len(to_hub)), np.zeros(len(at)), np.ones(len(own))])
        new = new.astype(np.int64)
        keep, move = np.ones(len(member), dtype=np.int64), new.copy()
        kept = slice(len(to_hub), len(to_hub) + len(at))
        keep[kept] = 1 - classes.primary[at, port]
        move[kept] = MOVES_OF_A_FAILED_REPLICA * classes.avoided[at, port]
        capacity = classes.size[class_of] * np.where(member < 0, self._wanted[class_of], 1)
        head = np.where(member < 0, self._first_hub + zone_of, FIRST_MEMBER + member)
        tail = self._item[class_of] + 2 + zone_of
        arcs = self._add(tail, head, capacity, keep=keep, move=move)
        return arcs, class_of, zone_of, member

    def _add_hubs(self) -> slice:
        columns = self._columns
        staying = np.flatnonzero(columns.staying)
        return self._add(
            self._first_hub + columns.zone_of[staying],
            FIRST_MEMBER + staying,
            columns.limit[staying],
        )

    def _add_member_arcs(self) -> None:
        rows: list[tuple[int, int, int, int, int]] = []
        for member, pieces in enumerate(self._columns.member_arcs):
            begin = int(self._base[member])
            for piece in pieces:
                # Fixed replicas already use the pieces before, which are cheaper.
                if piece.upto > begin:
                    capacity = piece.upto - begin
                    rows.append((member, capacity, piece.overload, piece.level, piece.drain))
                    begin = piece.upto
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        self._add(
            FIRST_MEMBER + table[:, 0],
            np.array(SINK),
            table[:, 1],
            overload=table[:, 2],
            level=table[:, 3],
            drain=table[:, 4],
        )

    def _arcs(self) -> tuple[Arcs, Ints]:
        """Return the network without arcs of no capacity, and which arcs remain."""
        capacity = np.concatenate([part[2] for part in self._parts])
        kept = np.flatnonzero(capacity > 0)
        units = np.zeros((len(capacity), len(self._objective)), dtype=np.int16)
        begin = 0
        for tail, _, _, adds in self._parts:
            for name, value in adds.items():
                units[begin : begin + len(tail), self._objective[name]] = value
            begin += len(tail)
        supply = np.zeros(self._nodes, dtype=np.int64)
        supply[SOURCE] = (self._wanted * self._classes.size).sum()
        supply[SINK] = -supply[SOURCE]
        arcs = Arcs(
            nodes=self._nodes,
            tail=np.concatenate([part[0] for part in self._parts])[kept].astype(np.int32),
            head=np.concatenate([part[1] for part in self._parts])[kept].astype(np.int32),
            capacity=capacity[kept].astype(np.int64),
            units=units[kept],
            supply=supply,
        )
        return arcs, kept

    def outer(self, potential: Ints) -> Potentials:
        """Return the potentials of the nodes that classes share."""
        first_item = self._first_hub + self._columns.zones
        return Potentials(
            member=potential[FIRST_MEMBER : self._first_hub].copy(),
            hub=potential[self._first_hub : first_item].copy(),
            source=int(potential[SOURCE]),
            sink=int(potential[SINK]),
        )

    def placed(self, flow: Ints, explicit: Ints) -> Placed:
        """Return the flow as a placement: deal the units of each class to its items (see `unit_assignment`)."""
        columns, classes = self._columns, self._classes
        whole = np.zeros(sum(len(part[0]) for part in self._parts), dtype=np.int64)
        whole[self._kept] = flow
        ways, class_of, zone_of, member = self._ways
        units = whole[ways]
        used = units > 0
        class_of, zone_of, member, units = class_of[used], zone_of[used], member[used], units[used]
        by_zone = np.zeros((len(classes.replication), columns.zones), dtype=np.int64)
        np.add.at(by_zone, (class_of, zone_of), units)
        in_zone, entered = by_zone[class_of, zone_of], classes.entered[class_of, zone_of] > 0
        given_up = ~columns.kept_zones[zone_of]
        order = np.lexsort((member, zone_of, -in_zone, entered, given_up, class_of))
        class_of, zone_of, member = (
            np.repeat(each[order], units[order]) for each in (class_of, zone_of, member)
        )
        begin = np.searchsorted(class_of, class_of, side="left")
        position = np.arange(len(class_of)) - begin
        row = classes.items[classes.begins[class_of] + position % classes.size[class_of]]
        hub_load = np.zeros(columns.none, dtype=np.int64)
        hub_load[np.flatnonzero(columns.staying)] = whole[self._hub_ways]
        placed = Placed(
            keep=columns.held & ~self._roles.loose,
            new=np.zeros((len(columns.items), columns.zones), dtype=np.int64),
            hub_load=hub_load,
            explicit=explicit,
            direct=np.zeros((len(explicit), columns.none), dtype=np.bool_),
        )
        hubbed = member < 0
        np.add.at(placed.new, (row[hubbed], zone_of[hubbed]), 1)
        self._deal_members(placed, row[~hubbed], member[~hubbed])
        return placed

    def _deal_members(self, placed: Placed, row: Ints, member: npt.NDArray[np.int64]) -> None:
        match: Bools = self._columns.current[row] == member[:, None]
        kept = match.any(axis=1)
        placed.keep[row[kept], match[kept].argmax(axis=1)] = True
        placed.direct[np.searchsorted(placed.explicit, row[~kept]), member[~kept]] = True
