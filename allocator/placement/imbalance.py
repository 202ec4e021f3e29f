"""Distance between a weighted placement's imbalance and its proven lower bound.

To find the optimum is hard (bin packing), but to bound it is not: in every placement, the utilisation of the most
utilised member is at least each of these.

* *Level*: the load spreads over all capacities, except that no member holds more than the heaviest items that its limit
  admits, nor a closed member more than it holds now.
* *Heavy item*: an item's n replicas are on n members, so one of them is on a member no larger than the n-th largest.
* *Pigeonholes*: with `t × members + 1` heavy replicas, some member has `t + 1`.
* *Zones*: items that span two zones have a replica outside any one zone.

All hold for placements with the same replicas and zones per item as the given one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemMember,
    usable,
    zones_spanned,
)
from broadsheet.allocator.placement.shares import capacity_of


def utilisation_max(problem: Problem, desired: Desired) -> Fraction:
    """Return the highest load per unit of capacity; 0 if nothing is placed."""
    loads: Counter[MemberId] = Counter()
    for item in problem.items:
        for member_id in desired[item.item_id]:
            loads[member_id] += item.load
    capacities = {member.member_id: capacity_of(member) for member in problem.members}
    return max((Fraction(load, capacities[m]) for m, load in loads.items()), default=Fraction())


def imbalance_gap(problem: Problem, desired: Desired) -> float:
    """Return how far the highest utilisation is above its lower bound, as a share of the bound; 0 is proven optimal."""
    bound = utilisation_bound(problem, desired)
    return float(utilisation_max(problem, desired) / bound - 1) if bound else 0.0


def utilisation_bound(problem: Problem, desired: Desired) -> Fraction:
    """Return a lower bound on the highest utilisation of any placement with the same replicas and zones."""
    members = usable(problem.members)
    replicas = _replicas(problem, desired)
    if not members or not replicas:
        return Fraction()
    return max(
        level(problem, desired),
        *_heavy_items(members, replicas),
        *_pigeonholes(members, replicas),
        *_zones(problem, members, desired),
    )


def level(problem: Problem, desired: Desired) -> Fraction:
    """Return the utilisation at which all members together carry the load."""
    members = usable(problem.members)
    total = sum(item.load * len(desired[item.item_id]) for item in problem.items)
    most = _most(problem, members)
    rising = sorted(members, key=lambda m: Fraction(most[m.member_id], capacity_of(m)))
    left, width = Fraction(total), sum(map(capacity_of, rising))
    for member in rising:
        top = Fraction(most[member.member_id], capacity_of(member))
        if top * width >= left:
            return left / width
        left -= most[member.member_id]
        width -= capacity_of(member)
    return Fraction()


def _most(problem: Problem, members: Sequence[ProblemMember]) -> Mapping[MemberId, int]:
    """Return the greatest load that each member may get."""
    heaviest_first = sorted((item.load for item in problem.items), reverse=True)
    prefix = [0]
    for load in heaviest_first:
        prefix.append(prefix[-1] + load)
    held: dict[MemberId, list[int]] = {m.member_id: [] for m in members if m.closed}
    if held:
        for item in problem.items:
            for member_id in item.current:
                if member_id in held:
                    held[member_id].append(item.load)
    return {
        m.member_id: sum(sorted(held[m.member_id], reverse=True)[: m.limit])
        if m.closed
        else prefix[min(m.limit, len(problem.items))]
        for m in members
    }


def _replicas(problem: Problem, desired: Desired) -> Counter[tuple[int, int]]:
    """Count items by their load and how many replicas they have."""
    found = Counter((item.load, len(desired[item.item_id])) for item in problem.items)
    return Counter({key: count for key, count in found.items() if key[1] > 0})


def _heavy_items(
    members: Sequence[ProblemMember], replicas: Mapping[tuple[int, int], int]
) -> Iterator[Fraction]:
    largest_first = sorted(map(capacity_of, members), reverse=True)
    for load, replication in replicas:
        yield Fraction(load, largest_first[replication - 1])


def _pigeonholes(
    members: Sequence[ProblemMember], replicas: Mapping[tuple[int, int], int]
) -> Iterator[Fraction]:
    largest = max(map(capacity_of, members))
    by_load: Counter[int] = Counter()
    for (load, replication), items in replicas.items():
        by_load[load] += items * replication
    seen = 0
    for load, count in sorted(by_load.items(), reverse=True):
        seen += count
        # Some member has at least seen / members (rounded up) replicas of this load or a heavier one.
        yield Fraction(((seen - 1) // len(members) + 1) * load, largest)


def _zones(
    problem: Problem, members: Sequence[ProblemMember], desired: Desired
) -> Iterator[Fraction]:
    spanning = sum(
        item.load for item in problem.items if zones_spanned(desired[item.item_id]) >= ZONES_WANTED
    )
    capacities: Counter[str] = Counter()
    for member in members:
        capacities[member.member_id.zone] += capacity_of(member)
    for zone in capacities:
        outside = capacities.total() - capacities[zone]
        if outside:
            yield Fraction(spanning, outside)
