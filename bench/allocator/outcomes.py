"""Small clusters whose right answer is known."""

from __future__ import annotations

from collections import Counter

from bench.allocator.clusters import in_one_zone
from bench.report import emit
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.solver import FlowSolver


def run(bench: str) -> None:
    """Solve and print `idle_members` and `placed`."""
    _idle(bench)
    _placed(bench)


def _idle(bench: str) -> None:
    """Eleven items on six members, four join: a ceiling of two alone would leave them idle."""
    problem = in_one_zone(limits=[100] * 10, placing=[(n % 6,) for n in range(11)], replication=1)
    desired = FlowSolver().solve(problem)
    assert not verify(problem, desired)
    loads = Counter(m for placed in desired.values() for m in placed)
    idle = sum(not loads[member.member_id] for member in problem.members)
    emit(bench, "idle_members", idle, "members", items=11, members=10, bound=0)


def _placed(bench: str) -> None:
    """Thirty-one items where members take eight each: rounding in parts would place fewer."""
    problem = in_one_zone(limits=[8] * 4, placing=[()] * 31, replication=1)
    desired = FlowSolver().solve(problem)
    assert not verify(problem, desired)
    placed = sum(len(members) for members in desired.values())
    emit(bench, "placed", placed, "replicas", items=31, members=4, limit=8, bound=31)
