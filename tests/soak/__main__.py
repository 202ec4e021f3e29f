"""`make soak`: an hour of steady traffic without a fault, and whether memory stays what it was; see docs/chaos.md."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
import structlog

from broadsheet.examples.stream_sum.publish import Producers
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.process_hosts import ProcessHosts
from tests.chaos.run import ChaosRun
from tests.chaos.services import ChaosServices
from tests.soak.memory import Measured, rss_by_process, table_line, verdict

IDLE_SECONDS = 200.0
"""After the traffic: longer than abandoned transactions stay in memory (`SPAN_SECONDS_MAX`, and an eighth of it)."""
WARM_SHARE = 1 / 6
"""Of the time of traffic after which memory is to stay: ten minutes of an hour."""


@click.command()
@click.option("--seconds", default=3600.0, help="How long streams flow.")
@click.option("--idle-seconds", default=IDLE_SECONDS, help="How long it is watched after that.")
@click.option("--every", default=60.0, help="Seconds between two lines of the table.")
@click.option("--seed", type=int, help="Chooses streams; a random one if absent.")
def main(seconds: float, idle_seconds: float, every: float, seed: int | None) -> None:
    """Print the memory of every process now and then; fail if it grows, or is kept when traffic has ended."""
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="broadsheet-soak-"))
    click.echo(f"seed {chosen}, {seconds:g} s of traffic; logs in {directory}")
    with (directory / "harness.log").open("w") as log, ChaosServices(directory) as services:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
        plan = services.plan(
            directory,
        )
        soak = _Soak(plan, services, seed=chosen, seconds=seconds, every_seconds=every)
        measured = asyncio.run(soak.run(idle_seconds))
    problems = verdict(measured, warm_seconds=seconds * WARM_SHARE, traffic_seconds=seconds)
    for problem in problems:
        click.echo(f"FAILED: {problem}", err=True)
    if problems:
        sys.exit(1)
    click.echo("memory stays, and falls when traffic ends")
    shutil.rmtree(directory)


class _Soak:
    """One run."""

    def __init__(
        self,
        plan: ClusterPlan,
        services: ChaosServices,
        *,
        seed: int,
        seconds: float,
        every_seconds: float,
    ) -> None:
        self._plan = plan
        self._services = services
        self._seed = seed
        self._seconds = seconds
        self._every_seconds = every_seconds
        self._began = 0.0
        self._measured: list[Measured] = []

    async def run(self, idle_seconds: float) -> list[Measured]:
        """Let streams flow, then nothing; return what was measured in between."""
        async with (
            ProcessHosts(self._plan) as hosts,
            JournalClient(self._services.broker.address) as journals,
        ):
            run = ChaosRun.planned(
                self._seed,
                seconds=self._seconds,
                plan=self._plan,
                services=self._services,
                hosts=hosts,
                tell=lambda line: None,
                pause_seconds=float("inf"),
            )
            await run.apply_specs(journals)
            producers = Producers(seed=self._seed)
            self._began = time.monotonic()
            async with TaskGroup() as group:
                publishing = group.start_soon(producers.run(journals), name="producers")
                await self._watch(self._seconds)
                producers.end()
                await publishing
                group.stop()
            click.echo(f"traffic ends, after {len(producers.expected):,} streams")
            await self._watch(self._seconds + idle_seconds)
            await hosts.stop()
        return self._measured

    async def _watch(self, until_seconds: float) -> None:
        """Print a line now and then."""
        while True:
            passed = time.monotonic() - self._began
            measured = Measured(passed, rss_by_process())
            self._measured.append(measured)
            click.echo(table_line(measured))
            if passed >= until_seconds:
                return
            await asyncio.sleep(min(self._every_seconds, until_seconds - passed))


if __name__ == "__main__":
    main()
