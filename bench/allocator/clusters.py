"""Clusters to start from, as problems."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember

ZONES = 3
SEED = 1
ROOM = 4
"""Limits, as a multiple of a member's fair share: never in the way."""


def after_event(*, items: int, members: int, event: str) -> Problem:
    """Return a cluster that was settled when something happened to it.

    Two replicas an item in two of three zones, loads equal, partners and primaries at random.

    Args:
        items: Their number.
        members: Their number before the event.
        event: `lose1`: one member is gone; `join10`: a tenth more are there.
    """
    ids = [MemberId(f"z{n % ZONES}", f"m{n:05}") for n in range(members + members // 10)]
    lost = ids[members // 2] if event == "lose1" else None
    live = sorted(m for m in ids[: members if event == "lose1" else len(ids)] if m != lost)
    draw = np.random.default_rng(SEED)
    placing: list[ProblemItem] = []
    for n, (pair, first) in enumerate(
        zip(_pairs(items, members, draw), draw.integers(0, 2, items).tolist(), strict=True)
    ):
        current = tuple(ids[m] for m in pair if ids[m] != lost)
        placing.append(
            ProblemItem(
                item_id=ItemId(f"item-{n:07}"),
                replication=2,
                current=current,
                primary=current[min(first, len(current) - 1)],
            )
        )
    limit = ROOM * 2 * items // members
    return Problem(
        members=tuple(ProblemMember(member_id=m, limit=limit, exiting=False) for m in live),
        items=tuple(placing),
    )


def _pairs(items: int, members: int, draw: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield two members for each item, of two zones, so that all members get as many."""
    zones = [[m for m in range(members) if m % ZONES == zone] for zone in range(ZONES)]
    totals = [2 * items * len(zone) // members for zone in zones]
    totals[0] += 2 * items - sum(totals)
    of_01 = (totals[0] + totals[1] - totals[2]) // 2
    of_02 = totals[0] - of_01
    of_12 = items - of_01 - of_02
    kinds = np.repeat([0, 1, 2], [of_01, of_02, of_12])
    draw.shuffle(kinds)
    slots: list[Iterator[int]] = []
    for zone, total in zip(zones, (of_01 + of_02, of_01 + of_12, of_02 + of_12), strict=True):
        row = np.resize(np.array(zone), total)
        draw.shuffle(row)
        slots.append(iter(row.tolist()))
    for kind in kinds.tolist():
        first, second = ((0, 1), (0, 2), (1, 2))[kind]
        yield next(slots[first]), next(slots[second])


def in_one_zone(*, limits: list[int], placing: list[tuple[int, ...]], replication: int) -> Problem:
    """Return a cluster of one zone.

    Args:
        limits: Of each member.
        placing: For each item, the numbers of the members that hold it, rising; the first is primary.
        replication: Of each item.
    """
    ids = [MemberId("z", f"m{n:03}") for n in range(len(limits))]
    return Problem(
        members=tuple(
            ProblemMember(member_id=m, limit=limit, exiting=False)
            for m, limit in zip(ids, limits, strict=True)
        ),
        items=tuple(
            ProblemItem(
                item_id=ItemId(f"item-{n:04}"),
                replication=replication,
                current=tuple(ids[m] for m in held),
                primary=ids[held[0]] if held else None,
            )
            for n, held in enumerate(placing)
        ),
    )
