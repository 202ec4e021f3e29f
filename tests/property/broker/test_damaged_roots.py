"""A data directory damaged anywhere: nothing wrong is served, nothing removed, and what is missing is declared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from tests.support.damaged_roots import Kind, make_root, problems_of

SEED = 22
PER_FILE = {Kind.FLIP: 1, Kind.CUT: 1, Kind.REMOVE: 1}
"""Damages of each kind to each file; `make fuzz DECODER=broker.data_root` goes on from there."""


def test_one_damage_anywhere_is_noticed_and_costs_nothing_else(tmp_path: Path) -> None:
    """Plan: flip, cut or remove in each file of a small root in turn, and start over it as a broker does.

    Why: starts are when a broker decides what to believe, and what it removed then would be gone for good.
    """
    root = make_root(tmp_path / "root")
    damages = list(root.damages(bit=3))
    Random(SEED).shuffle(damages)
    tried: Counter[tuple[str, Kind]] = Counter()
    problems: list[str] = []
    assert problems_of(root) == []
    for damage in damages:
        if tried[damage.file, damage.kind] < PER_FILE[damage.kind]:
            tried[damage.file, damage.kind] += 1
            problems += [f"{damage}: {problem}" for problem in problems_of(root, damage)]

    assert not problems
    assert {file for file, _ in tried} == set(root.sizes)
