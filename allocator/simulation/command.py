"""The command line that simulators share: the seeds to run, the progress, and the failures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from broadsheet.allocator.simulation.many import Family, RunResult, run_seed, run_seeds

PLAIN_LINE_SECONDS = 5.0
"""Time between two lines of progress without a terminal."""
FAILURES_SHOWN_MAX = 5


def simulator_command(about: str, family_of: Callable[[int | None], Family]) -> click.Command:
    """Return the command that runs a simulator's seeds, and exits with 1 if any of them fails.

    Args:
        about: The description in the help.
        family_of: Returns the family of runs, given the number of faults of each run, or None to draw it.
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
        family = family_of(steps)
        if seed is not None:
            outcome = run_seed(seed, family, sink=click.echo if trace else None)
            click.echo(outcome.text)
            sys.exit(not outcome.ok)
        if trace:
            raise click.UsageError("--trace shows one run: give --seed")
        sys.exit(_show_many(seeds, family, jobs=jobs))

    return main


def _seed_range(_: click.Context, __: click.Parameter, value: str) -> range:
    """Return the seeds of `first:end`, excluding the end."""
    first, separator, end = value.partition(":")
    if not (separator and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise click.BadParameter(f"expected two numbers such as 0:2000, got {value!r}")
    return range(int(first), int(end))


def _show_many(seeds: range, family: Family, *, jobs: int) -> bool:
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
