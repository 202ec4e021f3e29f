"""`make chaos`: a long run, on members that are processes or Spark executors; see `tests/chaos/run.py`."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
import structlog

from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.process_hosts import ProcessHosts
from tests.chaos.report import ChaosError, ChaosReport
from tests.chaos.run import ChaosRun
from tests.chaos.schedule import make_schedule
from tests.chaos.services import ChaosServices


@click.command()
@click.option("--seconds", default=600.0, help="How long streams flow and faults strike.")
@click.option("--seed", type=int, help="Chooses streams and faults; a random one if absent.")
@click.option("--store", default="json", help="json, sqlite, or a database URL.")
@click.option("--pause", default=5.0, help="Mean seconds from one fault to the next.")
def main(seconds: float, seed: int | None, store: str, pause: float) -> None:
    """Run chaos, and say whether every sum came out right, once."""
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="broadsheet-chaos-"))
    click.echo(f"seed {chosen}, {seconds:g} s, logs in {directory}")
    try:
        with ExitStack() as stack:
            log = stack.enter_context((directory / "harness.log").open("w"))
            structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
            services = stack.enter_context(ChaosServices(directory))
            report = asyncio.run(_run(services, directory, chosen, seconds, store, pause))
    except ChaosError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(str(report))
    shutil.rmtree(directory)


async def _run(
    services: ChaosServices, directory: Path, seed: int, seconds: float, store: str, pause: float
) -> ChaosReport:
    plan = ClusterPlan(
        etcd_endpoint=services.etcd.endpoint,
        broker_address=services.broker.address,
        directory=directory,
        store=store,
    )
    async with ProcessHosts(plan) as hosts:
        schedule = make_schedule(
            seed,
            seconds=seconds,
            members=plan.members,
            lease_seconds=plan.lease_seconds,
            pause_seconds=pause,
            kinds=hosts.kinds,
        )
        for fault in schedule:
            click.echo(str(fault))
        run = ChaosRun(
            seed=seed,
            seconds=seconds,
            schedule=schedule,
            services=services,
            hosts=hosts,
            tell=click.echo,
        )
        return await run.run()


if __name__ == "__main__":
    main()
