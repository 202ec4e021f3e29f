"""A real notebook's kernel: a cluster in it, tables below its cells, and nothing there that no cell asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.notebook_kernel import notebook
from tests.support.quick_spark import with_defaults_of_spark

pytestmark = [pytest.mark.spark, pytest.mark.etcd, pytest.mark.timeout(600)]

START = """
import asyncio
from pathlib import Path
from broadsheet.examples.counter.app import Counter
from broadsheet.spark_bridge import ShardCluster, start_session
from broadsheet.wire.shard_pb2 import ShardSpec

asyncio.get_running_loop()  # as in every cell
spark = start_session("local[3,100000]", app_name="notebook", conf={"spark.ui.enabled": "false"})

def create():
    print("made in a cell")
    return Counter()

cluster = ShardCluster(spark, create, members=1, root="/test/notebook", data_dir=Path("data"))
cluster.start()
spec = ShardSpec(id="idle", disable=True, sources=[ShardSpec.Source(journal="in/idle")])
spec.max_txn_duration.FromSeconds(1)
cluster.apply([spec])
"""
TABLE = """
shards = spark.read.format("shards").option("address", cluster.members()[0].endpoint).load()
[row.shard_id for row in shards.collect()]
"""
NEVER_SHOWN = re.compile(r"\[Stage \d|event=|made in a cell|task=")


def test_notebook_shows_tables_and_neither_progress_bars_nor_members_logs(tmp_path: Path) -> None:
    """A user's first hour: members and DataFrames from cells, in the kernel's loop, with formats that were not
    registered. The members' job never ends, so a progress bar would not either; and members of a local master share the
    kernel's streams, which notebooks show below whichever cell runs.
    """
    # Spark's own defaults, by which a shell of Python shows progress: not those of the tests.
    env = with_defaults_of_spark({**os.environ, "IPYTHONDIR": str(tmp_path)})
    # A kernel that a test starts would leave its streams as they are.
    env.pop("PYTEST_CURRENT_TEST", None)
    with notebook(env, directory=str(tmp_path)) as kernel:
        cells = [kernel.run(START)]
        cells.append(cluster := kernel.run("cluster"))
        cells.append(listing := kernel.run("cluster.client.list()"))
        cells.append(table := kernel.run(TABLE))
        cells.append(kernel.run("cluster.stop(); spark.stop()"))

    assert "ShardCluster /test/notebook: 1 member" in cluster.html
    log = tmp_path / "data/members.log"
    assert str(log) in cluster.html
    assert "<td>idle</td><td>DISABLED</td>" in listing.html
    assert table.texts == ["['idle']"]
    for cell in cells:
        assert not NEVER_SHOWN.search(cell.streams), cell.streams
    assert "made in a cell" in log.read_text()
