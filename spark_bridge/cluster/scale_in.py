"""Chooses who leaves when a cluster shrinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A task of the cluster that nobody told to leave."""

    partition: int
    """Its number."""
    executor_id: str | None
    """Where its member is announced; None if it is not, at the moment."""


def choose_leavers(seats: Collection[Seat], *, count: int) -> tuple[int, ...]:
    """Return the numbers of `count` tasks whose members are to leave.

    Those without a member go first: they serve nothing. Then always one of the executor that has most, so that the rest
    stay spread; of several the youngest, for it has had the least time to gather state.

    Requires:
        0 <= count <= len(seats).
    """
    assert 0 <= count <= len(seats), f"{count} of {len(seats)}"
    absent = sorted((one.partition for one in seats if one.executor_id is None), reverse=True)
    leavers = absent[:count]
    placed = [one for one in seats if one.executor_id is not None]
    while len(leavers) < count:
        leaver = _most_crowded(placed)
        leavers.append(leaver.partition)
        placed.remove(leaver)
    return tuple(leavers)


def _most_crowded(placed: Sequence[Seat]) -> Seat:
    members = Counter(one.executor_id for one in placed)
    return max(placed, key=lambda one: (members[one.executor_id], one.partition))
