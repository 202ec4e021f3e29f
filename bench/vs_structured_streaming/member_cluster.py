"""A driver with a `ShardCluster` on it, as a process of its own: `python -m …member_cluster '{…}'`."""

from __future__ import annotations

import json
import os
import signal
import sys

import msgspec

from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.spark_bridge.cluster import ShardCluster
from broadsheet.spark_bridge.session import start_session


class ClusterPlan(msgspec.Struct, frozen=True):
    """The program of a driver."""

    master_url: str
    session_conf: dict[str, str]
    root: str
    etcd: str
    broker: str
    state_directory: str
    members: int = 2


def main() -> None:
    """Run the members until the process is killed, or stop them at SIGTERM."""
    plan = msgspec.json.decode(sys.argv[1], type=ClusterPlan)
    spark = start_session(
        plan.master_url, app_name="vs_structured_streaming", conf=plan.session_conf
    )
    spark.sparkContext.setLogLevel("OFF")
    stopping = {signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    with ShardCluster(
        spark,
        "bench.vs_structured_streaming.key_sums:create",
        members=plan.members,
        root=plan.root,
        etcd=[plan.etcd],
        broker=plan.broker,
        state_dir=plan.state_directory,
        # Members die in a row here; no shard is to blame, and none may be held back.
        shards=ShardConfig(young_deaths_max=0),
    ):
        application_id = spark.sparkContext.applicationId
        print(json.dumps({"started": os.getpid(), "application_id": application_id}), flush=True)
        signal.sigwait(stopping)


if __name__ == "__main__":
    main()
