"""The runner: many seeds, told as they end; a failure is shown, and can be replayed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable

from click.testing import CliRunner

from broadsheet.allocator.placement.problem import Desired, Problem
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.testing.allocator import ClusterScenario, InvariantViolation, run
from broadsheet.testing.allocator.__main__ import main
from broadsheet.testing.allocator.kernel.command import run_seed, run_seeds
from broadsheet.testing.allocator.run import clusters
from broadsheet.testing.allocator.world import ClusterChange, StoredCluster


class Never:
    """An invariant that never holds."""

    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        """Object."""
        yield InvariantViolation("never", "as expected", change.commit.revision)

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        """Keep quiet."""
        return ()


def never() -> list[Never]:
    """Make it; a name, so that it goes to other processes."""
    return [Never()]


def test_runner_runs_the_seeds_and_counts_them() -> None:
    """All is well: status 0, and one line."""
    ran = CliRunner().invoke(main, ["--seeds", "0:2", "--steps", "2"])

    assert ran.exit_code == 0, ran.output
    assert ran.output.splitlines()[-1] == "2 seeds, 0 failed"


def test_runner_refuses_a_range_without_seeds() -> None:
    """The error says what was expected."""
    ran = CliRunner().invoke(main, ["--seeds", "5:5"])

    assert ran.exit_code == 2
    assert "expected two numbers such as 0:2000" in ran.output


def test_runner_traces_one_seed_only() -> None:
    """A trace of many runs would be of no use to anyone."""
    assert CliRunner().invoke(main, ["--seeds", "0:2", "--trace"]).exit_code == 2


def test_outcome_of_a_violation_names_seed_invariant_and_replay() -> None:
    """What a failing seed leaves behind is all that is needed to look at it."""
    outcome = run_seed(6, clusters(ClusterScenario(invariants=never)))

    assert not outcome.ok
    assert outcome.text.startswith("seed 6: never at revision 2: as expected")
    assert outcome.text.endswith("replay: python -m broadsheet.testing.allocator --seed 6 --trace")


class _Raises:
    def on_change(
        self, world: StoredCluster, change: ClusterChange
    ) -> Iterable[InvariantViolation]:
        raise RuntimeError("broken claim")

    def at_rest(self, world: StoredCluster) -> Iterable[InvariantViolation]:
        return ()


def test_outcome_of_a_run_that_breaks_is_a_failure_too() -> None:
    """An exception where none should be does not end the other seeds."""
    first, second = run_seeds([1, 2], clusters(ClusterScenario(invariants=lambda: [_Raises()])))

    assert not first.ok
    assert not second.ok
    assert "broken claim" in first.text
    assert first.text.endswith("--seed 1 --trace")


class _FailsInACallback:
    """A member's application, of which a callback raises where nobody waits for it."""

    @classmethod
    def of(cls, *_: object, **__: object) -> _FailsInACallback:
        """Take nothing."""
        return cls()

    async def run(self) -> None:
        """Raise later, elsewhere."""
        asyncio.get_running_loop().call_later(1.0, self._fail)
        await asyncio.Event().wait()

    def _fail(self) -> None:
        raise RuntimeError("nobody listens")


def test_error_that_goes_unhandled_fails_the_run() -> None:
    """An event loop only logs such an error: without this rule, a defect in a callback would pass for a good run."""
    outcome = run_seed(1, clusters(ClusterScenario(workload=_FailsInACallback.of)))

    assert outcome.text.startswith("seed 1: I0: Exception in callback ")
    assert "RuntimeError('nobody listens')" in outcome.text.splitlines()[0]


class _FailingSolver:
    """Answers every question with nothing, which the verifier refuses."""

    def solve(self, problem: Problem) -> Desired:
        return {}


def test_seeds_run_over_several_processes() -> None:
    """Each seed once, whichever process runs it; the scenario goes along."""
    seeds = range(12)
    scenario = ClusterScenario(invariants=never)

    outcomes = list(run_seeds(seeds, clusters(scenario), jobs=2))

    assert sorted(outcome.seed for outcome in outcomes) == list(seeds)
    assert not any(outcome.ok for outcome in outcomes)


def test_solver_that_answers_nothing_is_caught_at_rest() -> None:
    """Plans that are refused leave the items unserved, and that shows: the simulator judges users' solvers too."""
    scenario = ClusterScenario(
        solver=_FailingSolver, steps=(0, 0), replication=(1, 1), limit=(8, 8), items=(2, 2)
    )

    outcome = run_seed(1, clusters(scenario))

    assert outcome.text.startswith("seed 1: I4: 0 items have 1 replicas, 2 could")


class _FailsTheJudge:
    """A solver that answers members, and raises where the simulator judges with it."""

    def __init__(self) -> None:
        # The simulator's own module makes the judge's, the members' rounds make the others.
        self._is_judges = inspect.stack()[1].frame.f_globals["__name__"] == run.__name__

    def solve(self, problem: Problem) -> Desired:
        """Solve, or raise."""
        if self._is_judges:
            raise ValueError("not now")
        return FlowSolver().solve(problem)


def test_error_of_the_judge_is_told_as_such() -> None:
    """A solver that fails only when the simulator judges with it: members that stand still do not hide the error."""
    # Where there is no room for all, the simulator does not judge with the solver.
    outcomes = [
        run_seed(seed, clusters(ClusterScenario(solver=_FailsTheJudge))) for seed in range(8)
    ]
    failed = [outcome.text for outcome in outcomes if not outcome.ok]

    assert len(failed) > 2
    for text in failed:
        assert "DeadlockError" not in text
        assert "ValueError: not now" in text


class Moody:
    """A solver that fails once, early: later the simulator judges with it, and it answers."""

    asked = 0

    def solve(self, problem: Problem) -> Desired:
        """Solve, or raise."""
        Moody.asked += 1
        if Moody.asked == 2:
            raise ValueError("not now")
        return FlowSolver().solve(problem)


def test_decision_that_is_refused_fails_a_run_that_recovers_from_it() -> None:
    """The next attempt succeeds and the cluster comes to rest as it should: the defect shows all the same."""
    Moody.asked = 0

    outcome = run_seed(6, clusters(ClusterScenario(solver=Moody)))

    assert not outcome.ok
    assert outcome.text.startswith("seed 6: I0: ")
    assert "refused what it decided" in outcome.text
