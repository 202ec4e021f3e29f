"""Which items have a way that is cheaper than nothing, under given potentials."""

from __future__ import annotations

import numpy as np

from allocator.core.placement.arcs import FlowUnsolvedError
from allocator.core.placement.columns import Ints
from allocator.core.placement.residual import FAR, Potentials, Residual

OPENED_PER_NODE = 64
"""Items opened for each outer node at first, those with the cheapest ways; four times as many each time."""


def underpriced(residual: Residual, at: Potentials, turn: int) -> Ints:
    """Return rows of items to open; none if the flow is the cheapest.

    Args:
        residual: The residual network of the flow.
        at: Potentials of the network that was solved; lowered here where members hold nothing loose, for what those
            hold could go too.
        turn: Times that the network was solved, from 1.

    Raises:
        FlowUnsolvedError: the flow is not the cheapest even without opening anything.
    """
    if not residual.relax_outer(at):
        raise FlowUnsolvedError(
            "the flow has a negative cycle through members: it is not the cheapest"
        )
    inner = residual.inner(at)
    columns = residual.columns
    per_node = OPENED_PER_NODE * 4 ** (turn - 1)
    opened = [_cheapest(residual.into_source(inner) - at.source, per_node)]
    hubs = residual.into_hubs(inner) - at.hub
    opened += [_cheapest(hubs[:, zone], per_node) for zone in range(columns.zones)]
    member = np.append(at.member, FAR)
    for column in range(columns.current.shape[1]):
        held = columns.current[:, column]
        gain = residual.into_members(inner, column) - member[held]
        gain[held == columns.none] = 0
        rows = np.flatnonzero(gain < 0)
        order = rows[np.lexsort((gain[rows], held[rows]))]
        begin = np.searchsorted(held[order], held[order], side="left")
        opened.append(order[np.arange(len(order)) - begin < per_node])
    return np.unique(np.concatenate(opened))


def _cheapest(gain: Ints, most: int) -> Ints:
    rows = np.flatnonzero(gain < 0)
    if len(rows) <= most:
        return rows
    return rows[np.argpartition(gain[rows], most)[:most]]
