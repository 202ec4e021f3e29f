"""`make chaos`: a long run, on members that are Spark executors' or plain processes; see `tests/chaos/run.py`."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path

import click
import structlog

from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.process_hosts import ProcessHosts
from tests.chaos.report import ChaosError, ChaosReport
from tests.chaos.run import ChaosRun
from tests.chaos.schedule import PAUSE_SECONDS, FaultKind
from tests.chaos.services import ChaosServices
from tests.chaos.spark_hosts import SparkHosts

WORKERS, CORES_PER_WORKER = 2, 2
"""Every worker could host every member, as it must when the other one is gone."""
NewHosts = Callable[[ClusterPlan], ProcessHosts | SparkHosts]


@click.command()
@click.option("--seconds", default=600.0, help="How long streams flow and faults strike.")
@click.option("--seed", type=int, help="Chooses streams and faults; a random one if absent.")
@click.option("--hosts", type=click.Choice(["spark", "processes"]), default="spark")
@click.option("--store", default="sqlite", help="sqlite, json, or a database URL.")
@click.option("--recorded/--unrecorded", default=True, help="Whether shards have recovery logs.")
@click.option("--pause", default=PAUSE_SECONDS, help="Mean seconds from one fault to the next.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.name.lower() for kind in FaultKind]),
    help="Only these faults; may be given several times.",
)
@click.option("--keep", is_flag=True, help="Keep logs and data also after a good run.")
def main(
    seconds: float,
    seed: int | None,
    hosts: str,
    store: str,
    pause: float,
    kinds: tuple[str, ...],
    *,
    recorded: bool,
    keep: bool,
) -> None:
    """Run chaos, and say whether every sum came out right, once."""
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="broadsheet-chaos-"))
    click.echo(
        f"seed {chosen}, {seconds:g} s on {hosts}, store {store}, recorded {recorded}; logs in {directory}"
    )
    try:
        with ExitStack() as stack:
            log = stack.enter_context((directory / "harness.log").open("w"))
            structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
            # First, for it starts a JVM, which must happen before gRPC is used.
            new_hosts = _spark_hosts(stack) if hosts == "spark" else ProcessHosts
            services = stack.enter_context(ChaosServices(directory))
            plan = services.plan(
                directory,
                store=store,
                recorded=recorded,
                ends_on_empty_disk=True,
            )
            wanted = [FaultKind[name.upper()] for name in kinds]
            report = asyncio.run(
                _run(plan, services, new_hosts, chosen, seconds, pause_seconds=pause, kinds=wanted)
            )
    except ChaosError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(str(report))
    if not keep:
        shutil.rmtree(directory)


def _spark_hosts(stack: ExitStack) -> NewHosts:
    from broadsheet.spark_bridge.session import start_session
    from broadsheet.spark_bridge.standalone import StandaloneCluster

    standalone = stack.enter_context(
        StandaloneCluster(workers=WORKERS, cores_per_worker=CORES_PER_WORKER)
    )
    conf = {**standalone.session_conf, "spark.ui.showConsoleProgress": "false"}
    spark = start_session(standalone.master_url, app_name="chaos", conf=conf)
    stack.callback(spark.stop)
    spark.sparkContext.setLogLevel("OFF")
    return lambda plan: SparkHosts(plan, spark=spark, standalone=standalone)


async def _run(
    plan: ClusterPlan,
    services: ChaosServices,
    new_hosts: NewHosts,
    seed: int,
    seconds: float,
    *,
    pause_seconds: float,
    kinds: Collection[FaultKind],
) -> ChaosReport:
    async with new_hosts(plan) as hosts:
        run = ChaosRun.planned(
            seed,
            seconds=seconds,
            plan=plan,
            services=services,
            hosts=hosts,
            tell=click.echo,
            pause_seconds=pause_seconds,
            kinds=kinds,
        )
        return await run.run()


if __name__ == "__main__":
    main()
