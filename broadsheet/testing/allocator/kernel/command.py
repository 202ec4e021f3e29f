"""Many runs, over several processes, and the command line that shows their progress and their failures."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from types import FrameType
from typing import Generic, Protocol, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from broadsheet.testing.allocator.kernel.run import RunReport, RunScenario, Sink

SEED_SECONDS_MAX = 120
"""Real time that one run may take: a good run takes a fraction of a second."""
CHUNK_SEEDS = 10
"""Seeds given to a process at a time."""
PLAIN_LINE_SECONDS = 5.0
"""Time between two lines of progress without a terminal."""
FAILURES_SHOWN_MAX = 5

ScenarioT = TypeVar("ScenarioT", bound=RunScenario)
ScenarioT_contra = TypeVar("ScenarioT_contra", bound=RunScenario, contravariant=True)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one seed."""

    seed: int
    text: str
    """The report, for people."""
    ok: bool


class EndlessRunError(Exception):
    """A run does not end, because it loops without waiting for anything."""


class Simulate(Protocol[ScenarioT_contra]):
    """A simulator's function that runs one seed; picklable, as a function of a module is."""

    def __call__(
        self, seed: int, scenario: ScenarioT_contra, *, sink: Sink | None = None
    ) -> RunReport:
        """Return the outcome of one run."""
        ...


@dataclass(frozen=True, slots=True)
class Family(Generic[ScenarioT]):
    """Runs that differ only in their seed."""

    simulate: Simulate[ScenarioT]
    module: str
    """The module that `python -m` runs to repeat one of them."""
    scenario: ScenarioT
    """What the seeds draw from; with more than one job it must be picklable."""
    arguments: tuple[str, ...] = ()
    """Command-line arguments, besides the seed, that select the same scenario."""

    def with_steps(self, steps: int) -> Family[ScenarioT]:
        """Return the runs with this number of faults."""
        scenario = replace(self.scenario, steps=(steps, steps))
        return replace(self, scenario=scenario, arguments=("--steps", str(steps)))

    def replay(self, seed: int) -> str:
        """Return the command that repeats a seed's run with its trace."""
        command = " ".join(("python -m", self.module, *self.arguments))
        return f"replay: {command} --seed {seed} --trace"


def run_seed(seed: int, family: Family[ScenarioT], *, sink: Sink | None = None) -> RunResult:
    """Run one seed; a defect that breaks the run itself is an outcome too."""
    try:
        with _alarm(SEED_SECONDS_MAX):
            report = family.simulate(seed, family.scenario, sink=sink)
    except Exception as error:
        cause = "".join(traceback.format_exception(error, limit=-8))
        return RunResult(seed, f"seed {seed}: {cause}{family.replay(seed)}", ok=False)
    text = str(report) if report.ok else f"{report}\n{family.replay(seed)}"
    return RunResult(seed, text, ok=report.ok)


def run_seeds(
    seeds: Iterable[int], family: Family[ScenarioT], *, jobs: int = 1
) -> Iterator[RunResult]:
    """Run many seeds, and yield each outcome as it comes.

    Args:
        seeds: The seeds to run.
        family: The family of runs.
        jobs: Processes to use.
    """
    todo = list(seeds)
    if jobs == 1:
        yield from (run_seed(seed, family) for seed in todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        chunks = [todo[start : start + CHUNK_SEEDS] for start in range(0, len(todo), CHUNK_SEEDS)]
        running = [pool.submit(_run_chunk, chunk, family) for chunk in chunks]
        try:
            for finished in as_completed(running):
                yield from finished.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_chunk(seeds: list[int], family: Family[ScenarioT]) -> list[RunResult]:
    return [run_seed(seed, family) for seed in seeds]


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """Raise `EndlessRunError` in the main thread after a real time."""

    def ring(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame, limit=6))
        raise EndlessRunError(f"no end after {seconds} s of real time, at\n{where}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def simulator_command(about: str, family: Family[ScenarioT]) -> click.Command:
    """Return the command that runs a simulator's seeds, and exits with 1 if any of them fails.

    Args:
        about: The description in the help.
        family: The runs, unless `--steps` changes their number of faults.
    """

    @click.command(
        help=about, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
    )
    @click.option(
        "--seeds",
        callback=_seed_range,
        metavar="FIRST:END",
        default="0:200",
        help="Seeds to run, without the last.",
    )
    @click.option("--seed", type=click.IntRange(min=0), help="Run this seed alone.")
    @click.option("--trace", is_flag=True, help="With --seed: print everything that happens.")
    @click.option(
        "--steps",
        type=click.IntRange(min=0),
        help="Things that happen in each run; drawn if not set.",
    )
    @click.option(
        "--jobs", type=click.IntRange(min=1), default=1, help="Processes. Each keeps one core busy."
    )
    def main(seeds: range, seed: int | None, trace: bool, steps: int | None, jobs: int) -> None:
        chosen = family if steps is None else family.with_steps(steps)
        if seed is not None:
            outcome = run_seed(seed, chosen, sink=click.echo if trace else None)
            click.echo(outcome.text)
            sys.exit(not outcome.ok)
        if trace:
            raise click.UsageError("--trace shows one run: give --seed")
        sys.exit(_show_many(seeds, chosen, jobs=jobs))

    return main


def _seed_range(_: click.Context, __: click.Parameter, value: str) -> range:
    """Return the seeds of `first:end`, excluding the end."""
    first, separator, end = value.partition(":")
    if not (separator and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise click.BadParameter(f"expected two numbers such as 0:2000, got {value!r}")
    return range(int(first), int(end))


def _show_many(seeds: range, family: Family[ScenarioT], *, jobs: int) -> bool:
    """Run seeds and print the first failures; return whether there is any."""
    failed = list(_failures(run_seeds(seeds, family, jobs=jobs), len(seeds)))
    for outcome in failed[:FAILURES_SHOWN_MAX]:
        click.echo(outcome.text + "\n")
    click.echo(f"{len(seeds)} seeds, {len(failed)} failed")
    if failed:
        click.echo("failed: " + " ".join(str(outcome.seed) for outcome in failed))
    return bool(failed)


def _failures(outcomes: Iterator[RunResult], total: int) -> Iterator[RunResult]:
    """Yield the failed outcomes, and show the progress."""
    show = _bar if Console().is_terminal else _lines
    return (outcome for outcome in show(outcomes, total) if not outcome.ok)


def _bar(outcomes: Iterator[RunResult], total: int) -> Iterator[RunResult]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "{task.description}")
    with Progress(*columns) as progress:
        task = progress.add_task("", total=total)
        failed = 0
        for outcome in outcomes:
            failed += not outcome.ok
            description = f"{failed} failed" if failed else ""
            progress.update(task, advance=1, description=description)
            yield outcome


def _lines(outcomes: Iterator[RunResult], total: int) -> Iterator[RunResult]:
    due = time.monotonic() + PLAIN_LINE_SECONDS
    failed = 0
    for done, outcome in enumerate(outcomes, start=1):
        failed += not outcome.ok
        if time.monotonic() >= due:
            due = time.monotonic() + PLAIN_LINE_SECONDS
            click.echo(f"{done}/{total} seeds, {failed} failed")
        yield outcome
