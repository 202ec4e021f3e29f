"""A driver that is killed while its application has primaries: how long until they serve in the other application."""

from __future__ import annotations

import functools
import statistics
import tempfile
from pathlib import Path
from typing import Final

from bench.elastic.plan import BENCH, Plan
from bench.report import Params, emit
from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.cluster.shard_cluster import Services, find_or_start
from broadsheet.spark_bridge.session import start_session
from broadsheet.wire.shard_pb2 import ApplyRequest
from tests.support.driver_kill import is_spread, kill_and_measure
from tests.support.eventually import eventually_sync
from tests.support.flight_rounds import make_flight_journals
from tests.support.joining_driver import joining_driver
from tests.support.spark import shard_specs

SHARDS: Final = 6
MEMBERS: Final = 2
"""Of each application."""
MASTER: Final = "local[3,100000]"
JOIN_SECONDS_MAX: Final = 120.0
_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def measure(plan: Plan) -> None:
    """Print the figures of killed drivers."""
    with tempfile.TemporaryDirectory(prefix="elastic-") as name:
        directory = Path(name)
        # The JVM comes first: launching it forks, which gRPC does not bear.
        spark = start_session(MASTER, app_name="survivor", conf=_QUIET)
        spark.sparkContext.setLogLevel("OFF")
        database = f"sqlite:///{directory}/{{shard}}.db"
        with (
            find_or_start(None, None, data_dir=directory / "services") as services,
            ShardCluster(
                spark,
                functools.partial(FlightsApplication, database),
                members=MEMBERS,
                root="/bench/drivers",
                join=True,
                etcd=services.etcd,
                broker=services.broker_address,
                lease_ttl_seconds=60.0,
            ) as cluster,
        ):
            trials = [
                _trial(cluster, services, database, directory, number)
                for number in range(plan.trials)
            ]
        spark.stop()
    last = [max(each) for each in trials]
    each_shard = [seconds for each in trials for seconds in each]
    params: Params = {
        "shards_killed": len(each_shard),
        "trials": plan.trials,
        "lease_ttl_s": 60.0,
        "load": plan.load,
    }
    emit(BENCH, "driver_kill_p50_s", statistics.median(last), "s", **params)
    emit(BENCH, "driver_kill_max_s", max(last), "s", **params)
    emit(BENCH, "driver_kill_shard_p50_s", statistics.median(each_shard), "s", **params)


def _trial(
    cluster: ShardCluster, services: Services, database: str, directory: Path, number: int
) -> list[float]:
    """Return the seconds of each shard that the killed application served."""
    name = f"trial-{number}"
    journals = [f"{name}/{index:03d}" for index in range(SHARDS)]
    specs = shard_specs(name, journals)
    make_flight_journals(services.broker_address, journals)
    with joining_driver(
        cluster.address,
        master_url=MASTER,
        members=MEMBERS,
        database=database,
        directory=directory,
        conf=_QUIET,
    ) as victim:
        victim.wait_joined()
        # New shards, because primaries that serve do not move to members that join.
        cluster.apply(specs)
        eventually_sync(lambda: is_spread(cluster, victim), timeout_seconds=JOIN_SECONDS_MAX)
        sources = {spec.id: spec.sources[0].journal for spec in specs}
        killed = kill_and_measure(cluster, victim, sources)
    cluster.client.apply(
        [ApplyRequest.Change(delete=spec.id, expect_mod_revision=-1) for spec in specs]
    )
    return list(killed.seconds.values())
