"""The solver: seconds, memory and moves of one solve, beside the least moves that the dual proves; and its answers for
small clusters whose right answer is known.

Each timed case runs in a process of its own. Timed is what a leader waits for: from the problem to a placement that the
verifier passed, including the first import of numpy and the solver in none of the cases. The peak is the process's: the
problem itself, the libraries, the solve and the check.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter

from bench.allocator.clusters import after_event, in_one_zone
from bench.report import emit
from broadsheet.allocator.placement.certificate import verify
from broadsheet.allocator.placement.solver import FlowSolver

CASES = ((10_000, 100), (100_000, 100), (1_000_000, 1_000))
EVENTS = ("lose1", "join10")
ROUNDS = 5
"""Solves of a small case, whose median is told; a case of more than `ITEMS_ONCE` is solved once."""
ITEMS_ONCE = 100_000
CASE_TIMEOUT_SECONDS = 900


def run(bench: str) -> None:
    """Measure and print `solve_s`, `solve_peak_mb`, `moves` and `moves_bound`."""
    for items, members in CASES:
        for event in EVENTS:
            case = [sys.executable, "-m", "bench.allocator.solver", str(items), str(members), event]
            done = subprocess.run(  # noqa: S603 our own module
                case, stdout=subprocess.PIPE, check=True, timeout=CASE_TIMEOUT_SECONDS
            )
            for figure, (value, unit) in json.loads(done.stdout).items():
                emit(
                    bench,
                    figure,
                    value,
                    unit,
                    items=items,
                    members=members,
                    replicas=2,
                    event=event,
                )


def measure(items: int, members: int, event: str) -> dict[str, tuple[float, str]]:
    """Return the figures of one case."""
    # Imported here for all that follows: a leader imports them once in its life.
    from broadsheet.allocator.placement.certificate import certify

    FlowSolver().solve(after_event(items=20, members=10, event=event))
    problem = after_event(items=items, members=members, event=event)
    times: list[float] = []
    for _ in range(1 if items > ITEMS_ONCE else ROUNDS):
        began = time.perf_counter()
        desired = FlowSolver().solve(problem)
        findings = verify(problem, desired)
        times.append(time.perf_counter() - began)
        assert not findings, findings
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    certificate = certify(problem, desired)
    return {
        "solve_s": (statistics.median(times), "s"),
        "solve_peak_mb": (peak_kib / 1024, "MiB"),
        "moves": (certificate.moves, "replicas"),
        "moves_bound": (certificate.moves_bound, "replicas"),
    }


def run_outcomes(bench: str) -> None:
    """Solve small clusters, and print `idle_members` and `placed`."""
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


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
