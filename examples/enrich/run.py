"""Runs the whole example: `python -m broadsheet.examples.enrich.run`.

Three members on Spark keep profiles of accounts. A DataFrame of payments is published into their journals; another one
of orders is enriched by the profiles: live ones, with all payments that were just published. In between, the member
that keeps most profiles is killed. The enriched rows are compared with a join of the two DataFrames.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

import psutil
from pyspark.sql import DataFrame, SparkSession

from broadsheet.examples.enrich.look_up import unusual_orders, with_profiles
from broadsheet.examples.enrich.messages import PAYMENT_JOURNALS, SHARDS
from broadsheet.examples.enrich.rows import differences, orders_of, payments_of
from broadsheet.spark_bridge import (
    PublishTarget,
    ShardCluster,
    TaskResolver,
    publish_dataframe,
    start_session,
    token_of_heads,
)

MASTER = "local[6,100000]"
"""Task slots for three members and for the DataFrames beside them; failures are allowed."""
ROOT = "/broadsheet/enrich"
MEMBERS = 3
PAYMENTS, ORDERS = 20_000, 2_000


def main() -> int:
    """Run it; return the exit status."""
    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    spark = start_session(MASTER, app_name="enrich", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    try:
        with ShardCluster(
            spark, "broadsheet.examples.enrich.app:create", members=MEMBERS, root=ROOT
        ) as cluster:
            return _run(spark, cluster)
    finally:
        spark.stop()


def apply_specs(cluster: ShardCluster) -> None:
    """Create the journals and the shards, as a user would."""
    addresses = ["--address", cluster.client.address, "--broker", cluster.services.broker_address]
    for kind, file in (("journals", "journals.yaml"), ("shards", "shards.yaml")):
        command = ["shardctl", kind, "apply", "--specs", f"examples/enrich/{file}", *addresses]
        subprocess.run(command, check=True)  # noqa: S603 - our own program
    cluster.wait_for_primary(SHARDS)


def publish_payments(cluster: ShardCluster, payments: DataFrame, name: str) -> dict[str, int]:
    """Publish payments; return the token of all that is published: offsets, bytes by journal."""
    broker = cluster.services.broker_address
    target = PublishTarget(
        broker_address=broker,
        etcd_endpoints=cluster.services.etcd.endpoints,
        root=cluster.root,
        journals=PAYMENT_JOURNALS,
    )
    publish_dataframe(payments, target, publication=name, key="account", order_by=["paid_at"])
    return token_of_heads(broker, PAYMENT_JOURNALS)


def kill_busiest_member(cluster: ShardCluster, shards: Sequence[str] = SHARDS) -> str:
    """Kill the process of the member that serves most of some shards; return that member."""
    (busiest, _), *_ = Counter(cluster.wait_for_primary(shards).values()).most_common()
    victim = next(one for one in cluster.members() if one.member_id == busiest)
    port = int(victim.endpoint.rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        here = connection.laddr
        if connection.status == psutil.CONN_LISTEN and here and here.port == port:
            assert connection.pid is not None, "the member is a process of ours"
            os.kill(connection.pid, signal.SIGKILL)
    return str(busiest)


def _run(spark: SparkSession, cluster: ShardCluster) -> int:
    apply_specs(cluster)
    payments, orders = payments_of(spark, PAYMENTS), orders_of(spark, ORDERS)
    token = publish_payments(cluster, payments, "payments")
    resolver = TaskResolver(cluster, mapping="modulo", journals=PAYMENT_JOURNALS, token=token)
    wrong = _show("all members alive", orders, payments, resolver)
    print(f"killed {kill_busiest_member(cluster)}")
    wrong += _show("one of them killed just before", orders, payments, resolver)
    print(f"{len(unusual_orders(orders, resolver))} of {ORDERS} orders are unusual")
    return 1 if wrong else 0


def _show(title: str, orders: DataFrame, payments: DataFrame, resolver: TaskResolver) -> int:
    began = time.monotonic()
    enriched = with_profiles(orders, resolver).cache()
    enriched.count()
    seconds = time.monotonic() - began
    wrong = differences(enriched, payments)
    enriched.unpersist()
    print(f"{title}: {ORDERS} orders enriched, {wrong} different from a join, {seconds:.1f} s")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
