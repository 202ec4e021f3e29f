"""Proof that a placement is minimal, independent of how it was found.

*Optimal*: potentials exist under which no residual arc has a negative reduced cost. *Bound*: a lower bound on the cost
of every placement, from those potentials and the network alone. The cost equals the bound if the placement is minimal.

The hub network is a relaxation, because a hub does not track which item its units belong to; so the bound holds for
valid placements. But a flow that has an item twice on a member may be cheaper there than a minimal placement. Therefore
the proof is tried with more and more items that have arcs to members in place of hubs: those that a solver named, those
that get a replica, all of them. With all items it is exact. If that is too large, a minimal placement may stay
unproven.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.columns import Ints, PlacementColumns, columns_of
from broadsheet.allocator.placement.objective_costs import Weights
from broadsheet.allocator.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    kept_zones,
    usable,
    zones_spanned,
)
from broadsheet.allocator.placement.residual import FAR, Inner, Placed, Potentials, Residual
from broadsheet.allocator.placement.shares import Totals, capacity_of, is_weighted, load_windows
from broadsheet.allocator.policy import Balance


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The proven properties of a placement."""

    optimal: bool
    """Whether it is proven that no placement is better in the whole lexicographic order."""
    moves: int
    """New replicas, failed ones kept counting double."""
    moves_bound: int
    """The least moves of any placement equal in all heavier objectives, by the dual alone; 0 if there is no bound."""
    rounds: int
    """Times that distances were lowered for it; see `rounds_max`."""


EXPLICIT_CELLS_MAX = 20_000_000
"""Items times members, if all items are to have arcs to all members: some seconds, and half a gigabyte."""
NETWORKS_MAX = 3
"""Sets of items with arcs to members that are tried."""


def rounds_max(problem: Problem) -> int:
    """Return the most relaxation rounds of a certificate: twice Bellman's and Ford's, squared."""
    members = usable(problem.members)
    outer = len(members) + len({member.member_id.zone for member in members}) + 2
    return (NETWORKS_MAX + 1) * (outer + 1) * (outer + 2)


def certify(
    problem: Problem, desired: Desired, *, explicit: frozenset[ItemId] = frozenset()
) -> Certificate:
    """Return the properties of a placement that can be proven.

    Args:
        problem: The placement problem.
        desired: The placement to prove.
        explicit: Items that get arcs to members from the start; a solver names those that hubs alone would place twice
            on one member. If not given, they are searched for.
    """
    columns = columns_of(problem)
    weights = Weights.for_cluster(
        members=columns.none,
        zones=columns.zones,
        objective=problem.objective,
        drain_cost_max=columns.drain_cost_max,
    )
    # The bound is on moves, so lighter objectives do not count.
    heavy = replace(weights, keep=0, spread=0, level=0)
    if problem.objective.moves_before_balance:
        heavy = replace(heavy, overload=0)
    rounds, larger_sets = 0, _larger_sets(columns, desired, explicit)
    some: frozenset[ItemId] | None = explicit
    while some is not None:
        placed = placed_of(columns, desired, some)
        residual = Residual(columns, placed, weights)
        optimal = potentials_of(residual) is not None
        rounds += residual.rounds
        some = None if optimal else next(larger_sets, None)
    residual = Residual(columns, placed, heavy)
    at = potentials_of(residual)
    moves = _moves(columns, placed)
    heavier = cost(residual) - moves * heavy.move
    return Certificate(
        optimal=optimal,
        moves=moves,
        moves_bound=0 if at is None else -((heavier - dual_value(residual, at)) // heavy.move),
        rounds=rounds + residual.rounds,
    )


def _larger_sets(
    columns: PlacementColumns, desired: Desired, named: frozenset[ItemId]
) -> Iterator[frozenset[ItemId]]:
    """Yield growing sets of items to give arcs to members, for when the named ones are too few."""
    items = [columns.problem.items[n] for n in columns.items.tolist()]
    new = named.union(
        item.item_id for item in items if not set(desired[item.item_id]) <= set(item.current)
    )
    # Too large to try, so minimality stays unproven.
    if len(new) * columns.none > EXPLICIT_CELLS_MAX:
        return
    if len(new) > len(named):
        yield new
    if len(items) > len(new) and len(items) * columns.none <= EXPLICIT_CELLS_MAX:
        yield frozenset(item.item_id for item in items)


def placed_of(
    columns: PlacementColumns, desired: Desired, explicit: frozenset[ItemId] = frozenset()
) -> Placed:
    """Return a placement as a flow."""
    items, number = columns.problem.items, {m.member_id: n for n, m in enumerate(columns.members)}
    ids = [items[n].item_id for n in columns.items.tolist()]
    rows = [row for row, item_id in enumerate(ids) if item_id in explicit]
    at_row = {row: index for index, row in enumerate(rows)}
    held = columns.held
    placed = Placed(
        keep=np.zeros(columns.current.shape, dtype=np.bool_),
        new=np.zeros((len(ids), columns.zones), dtype=np.int64),
        hub_load=np.zeros(columns.none, dtype=np.int64),
        explicit=np.array(rows, dtype=np.int64),
        direct=np.zeros((len(rows), columns.none), dtype=np.bool_),
    )
    at_column: dict[MemberId, int]
    for row, item_id in enumerate(ids):
        current = items[int(columns.items[row])].current
        # The usual case: the item keeps all its replicas.
        if desired[item_id] == current and len(current) == held[row].sum():
            placed.keep[row] = held[row]
            continue
        at_column = {
            columns.members[m].member_id: column
            for column, m in enumerate(columns.current[row].tolist())
            if m < columns.none
        }
        for member_id in desired[item_id]:
            m = number[member_id]
            if member_id in at_column:
                placed.keep[row, at_column[member_id]] = True
            elif row in at_row:
                placed.direct[at_row[row], m] = True
            else:
                placed.new[row, columns.zone_of[m]] += 1
                placed.hub_load[m] += 1
    return placed


MEMBERS_DENSE_MAX = 3_000
"""Up to this many members, the costs between all pairs fit in memory, and items are examined only once."""


def potentials_of(residual: Residual) -> Potentials | None:
    """Return potentials that prove the flow minimal; None if a negative cycle shows that it is not."""
    columns = residual.columns
    at = Potentials.zero(columns)
    dense = columns.none <= MEMBERS_DENSE_MAX and not len(residual.placed.explicit)
    costs = residual.item_costs() if dense else None
    # A shortest path passes each outer node once, and each relaxation extends it by at least one node.
    for _ in range(columns.none + columns.zones + 3):
        if not residual.relax_outer(at):
            return None
        residual.rounds += 1
        lower = residual.relax_items(at) if costs is None else _relax(costs, at)
        if not lower:
            return at
    return None


def _relax(costs: Ints, at: Potentials) -> bool:
    """Lower distances by costs between outer nodes, once; False if none became lower."""
    before = np.concatenate([at.member, at.hub, [at.source]])
    after = np.minimum(before, (before[:, None] + costs).min(axis=0))
    hubs = len(at.member)
    at.member, at.hub, at.source = after[:hubs], after[hubs:-1], int(after[-1])
    return bool((after < before).any())


def cost(residual: Residual) -> int:
    """Return the cost of the flow."""
    columns, placed, weights = residual.columns, residual.placed, residual.weights
    new = int(placed.new.sum() + placed.direct.sum())
    total = new * residual.new_cost + total_of(np.where(placed.keep, residual.keep_cost, 0))
    replicas = residual.replicas
    total += weights.cover * int((replicas * (replicas - 1) // 2).sum())
    total += residual.unplaced * residual.unplaced_cost
    total += total_of(residual.spread_cost * (replicas - residual.spanned))
    total += total_of(residual.zone_cost * (replicas - residual.spanned.clip(max=ZONES_WANTED)))
    for member, pieces in enumerate(columns.member_arcs):
        begin = 0
        for piece in pieces:
            units = max(0, min(int(residual.load[member]), piece.upto) - begin)
            total += units * piece.cost(weights)
            begin = piece.upto
    return total


def dual_value(residual: Residual, at: Potentials) -> int:
    """Return the least cost of any flow, by potentials: units wanted × distance less the savings of full arcs."""
    columns, weights = residual.columns, residual.weights
    inner = residual.inner(at)
    wanted = int(columns.replication.sum())
    total = wanted * (at.sink - at.source)
    total += wanted * min(0, residual.unplaced_cost + at.source - at.sink)
    for member, pieces in enumerate(columns.member_arcs):
        begin = 0
        for piece in pieces:
            reduced = piece.cost(weights) + int(at.member[member]) - at.sink
            total += (piece.upto - begin) * min(0, reduced)
            begin = piece.upto
    staying = columns.staying[:-1]
    hub_to_member = at.hub[columns.zone_of[:-1]] - at.member
    total += total_of((columns.limit * hub_to_member.clip(max=0))[staying])
    return total + _items_value(residual, at, inner)


def _items_value(residual: Residual, at: Potentials, inner: Inner) -> int:
    columns, weights = residual.columns, residual.weights
    total = 0
    for replica in range(int(columns.replication.max(initial=0))):
        reduced = at.source + weights.cover * replica - inner.item
        total += total_of(np.where(replica < columns.replication, reduced.clip(max=0), 0))
    down = inner.item - inner.spread
    first = columns.replication.clip(max=ZONES_WANTED)
    total += total_of(first * down.clip(max=0))
    total += total_of((columns.replication - first) * (down + residual.zone_cost).clip(max=0))
    room = residual.room
    to_zone = (inner.spread[:, None] - inner.zone).clip(max=0)
    total += total_of(np.where((room > 0) & columns.kept_zones, to_zone, 0))
    further = (residual.zone_cost + residual.spread_cost + inner.item)[:, None]
    total += total_of((room - columns.kept_zones).clip(min=0) * (further - inner.zone).clip(max=0))
    ways = (residual.into_hubs(inner) - at.hub).clip(max=0)
    total += total_of(columns.replication[:, None] * ways)
    zone = np.append(inner.zone, np.full((len(inner.item), 1), FAR), axis=1)
    member = np.append(at.member, 0)
    for column in range(columns.current.shape[1]):
        held = columns.current[:, column]
        tail = zone[np.arange(len(held)), columns.zone_of[held]]
        total += total_of((tail + residual.keep_cost[:, column] - member[held]).clip(max=0))
    for _, to_members, exists in residual.explicit_ways(inner):
        total += total_of((to_members - at.member).clip(max=0)[exists])
    return total


def total_of(values: Ints) -> int:
    """Return an exact sum, because a sum of many 64-bit numbers may need more bits."""
    return (int((values >> 31).sum()) << 31) + int((values & (2**31 - 1)).sum())


def _moves(columns: PlacementColumns, placed: Placed) -> int:
    failed = int((placed.keep & columns.avoided).sum())
    return int(placed.new.sum() + placed.direct.sum()) + 2 * failed


VIOLATIONS_REPORTED_MAX = 10
"""Enough to diagnose a defect; a broken solver may break every item."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A defect of a placement, with its item and member."""

    item_id: ItemId | None
    member_id: MemberId | None
    problem: str

    def __str__(self) -> str:
        where = " on ".join(
            str(part) for part in (self.item_id, self.member_id) if part is not None
        )
        return f"{where}: {self.problem}"


def verify(problem: Problem, desired: Desired) -> tuple[Violation, ...]:
    """Return the defects of `desired`, at most `VIOLATIONS_REPORTED_MAX`; empty if there are none.

    This is an independent check before a placement is used. It does not use flows: it examines the placement and tries
    to improve it by the simplest steps. A placement that breaks a bound, or that a single step would improve in a
    higher objective, is refused.
    """
    check = _Check(problem, desired)
    found: list[Violation] = []
    for violation in check.violations():
        found.append(violation)
        if len(found) == VIOLATIONS_REPORTED_MAX:
            break
    return tuple(found)


class _Check:
    """Checks a million items in about a second: members are ranks, and an unsuspicious item costs no call."""

    def __init__(self, problem: Problem, desired: Desired) -> None:
        self._problem = problem
        self._desired = desired
        self._members = problem.members
        self._ranks = {member.member_id: rank for rank, member in enumerate(problem.members)}
        # Members recur often, so each object that represents a member is looked up by value only once.
        mentions = Counter(map(id, chain.from_iterable(desired.values())))
        values = {id(m): m for m in chain.from_iterable(desired.values())}
        self._rank_of = {key: self._ranks.get(m, -1) for key, m in values.items()}
        self._loads: Counter[MemberId] = Counter()
        for key, count in mentions.items():
            self._loads[values[key]] += count
        self._room = [
            member for member in problem.members if self._loads[member.member_id] < member.limit
        ]
        self._drained = {member.member_id for member in problem.members if member.drain_cost}
        self._kept_zones = kept_zones(problem.members)
        self._closed = {member.member_id for member in problem.members if member.closed}

    def violations(self) -> Iterator[Violation]:
        for member_id, load in self._loads.items():
            if member_id not in self._ranks:
                yield Violation(None, member_id, "is no member")
            elif load > (limit := self._members[self._ranks[member_id]].limit):
                yield Violation(None, member_id, f"holds {load}, its limit is {limit}")
        if unknown := self._desired.keys() - {item.item_id for item in self._problem.items}:
            yield Violation(min(unknown), None, "is no item")
        zone_of = [member.member_id.zone for member in self._members]
        rank_of, desired, closed = self._rank_of, self._desired, self._closed
        for item in self._problem.items:
            placed = desired.get(item.item_id)
            if placed is None:
                yield Violation(item.item_id, None, "has no answer")
                continue
            ranks = [rank_of[id(m)] for m in placed]
            # Nearly every placement is sorted, complete and spread, which this loop finds without a call for each item.
            last, zone, zones = -1, None, 0
            for rank in ranks:
                if rank <= last:
                    break
                last = rank
                if zone_of[rank] != zone:
                    zone = zone_of[rank]
                    zones += 1
            else:
                if (
                    len(ranks) == item.replication
                    and (zones >= ZONES_WANTED or len(ranks) < ZONES_WANTED)
                    and (not closed or closed.isdisjoint(placed))
                ):
                    continue
            yield from self._item_violations(item, placed)
        yield from self._balance_violations()

    def _item_violations(
        self, item: ProblemItem, placed: tuple[MemberId, ...]
    ) -> Iterator[Violation]:
        if len(set(placed)) != len(placed):
            yield Violation(item.item_id, None, "has a member twice")
        if list(placed) != sorted(placed):
            yield Violation(item.item_id, None, "has members out of order")
        if len(placed) > item.replication:
            yield Violation(item.item_id, None, f"has {len(placed)} of {item.replication} replicas")
        for member_id in placed:
            if member_id in self._closed and member_id not in item.current:
                yield Violation(
                    item.item_id, member_id, "is new on a member that is leaving or cordoned"
                )
        others = [
            member.member_id
            for member in self._room
            if member.member_id not in placed
            and (not member.closed or member.member_id in item.current)
        ]
        if len(placed) < item.replication and others:
            yield Violation(item.item_id, others[0], "is short of a replica that fits")
        # Where one zone is kept, at most, no placement spans two, and which zone it is does not matter.
        is_spread = len(self._kept_zones) < ZONES_WANTED or self._zones(placed) >= ZONES_WANTED
        if len(placed) >= ZONES_WANTED and not is_spread:
            zones = {member_id.zone for member_id in placed}
            elsewhere = (m for m in others if m.zone in self._kept_zones - zones)
            if (other := next(elsewhere, None)) is not None:
                yield Violation(item.item_id, other, "is in one zone, another has room")
        for member_id in self._drained.intersection(placed):
            yield from self._drain_violations(item, member_id, others)

    def _zones(self, placed: Iterable[MemberId]) -> int:
        """Return how many zones the members span, without those that are given up."""
        return zones_spanned(m for m in placed if m.zone in self._kept_zones)

    def _drain_violations(
        self, item: ProblemItem, member_id: MemberId, others: Iterable[MemberId]
    ) -> Iterator[Violation]:
        """Find a member that could take a replica from a drained one, without a loss of zones."""
        placed = self._desired[item.item_id]
        rest = [m for m in placed if m != member_id]
        zones = min(ZONES_WANTED, self._zones(placed))
        for other in others:
            if other not in self._closed and self._zones([*rest, other]) >= zones:
                yield Violation(item.item_id, member_id, f"is drained, {other} has room")
                return

    def _balance_violations(self) -> Iterator[Violation]:
        """Find items to move from an overfull member to an underfull one of the same zone."""
        if self._problem.objective.moves_before_balance or is_weighted(self._problem):
            # Even counts are not the objective.
            return
        pairs: dict[MemberId, set[MemberId]] = {}
        for giver, taker in chain(self._outside_windows(), self._unlike_their_equals()):
            pairs.setdefault(giver, set()).add(taker)
        if not pairs:
            return
        for item_id, placed in self._desired.items():
            for giver in pairs.keys() & set(placed):
                free = pairs[giver].difference(placed)
                if free:
                    yield Violation(item_id, giver, f"has too many, {min(free)} too few")

    def _outside_windows(self) -> Iterator[tuple[MemberId, MemberId]]:
        """Yield donor and recipient members, by the windows of their loads."""
        windows = load_windows(self._members, Totals.of(self._problem), self._problem.objective)
        takers: dict[str, list[tuple[MemberId, int]]] = {}
        for member in usable(self._members):
            load, window = self._loads[member.member_id], windows[member.member_id]
            if load < min(window.ceiling, member.limit) and not member.closed:
                gain = 2 if load < window.floor else 1
                takers.setdefault(member.member_id.zone, []).append((member.member_id, gain))
        for giver, load in self._loads.items():
            if giver in windows:
                window = windows[giver]
                loss = (load > window.floor) + (load > window.ceiling)
                for taker, gain in takers.get(giver.zone, ()):
                    if gain + loss > 2:
                        yield giver, taker

    def _unlike_their_equals(self) -> Iterator[tuple[MemberId, MemberId]]:
        """Yield donor and recipient members among equal members, because equal members have equal fair shares.

        This check does not depend on the windows, because the solver uses them too.
        """
        objective = self._problem.objective
        staying = [member for member in usable(self._members) if not member.closed]
        items = sum(item.replication > 0 for item in self._problem.items)
        if objective.balance is not Balance.TWO_SIDED or objective.tolerance_ratio > 0:
            return
        if items <= len(staying):
            # So few replicas are not evened out: see `shares`.
            return
        alike: dict[tuple[str, int, int], list[MemberId]] = defaultdict(list)
        for member in staying:
            kind = (member.member_id.zone, capacity_of(member), min(member.limit, items))
            alike[kind].append(member.member_id)
        for equals in alike.values():
            least = min(self._loads[m] for m in equals)
            givers = [m for m in equals if self._loads[m] > least + 1]
            for giver, taker in product(givers, equals if givers else ()):
                if self._loads[taker] < self._loads[giver] - 1:
                    yield giver, taker
