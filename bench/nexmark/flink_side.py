"""Nexmark's queries in Flink SQL over files of events; runs in an environment with `apache-flink`, without ours.

python bench/nexmark/flink_side.py DIRECTORY ROUNDS QUERY…: prints a JSON object a line, with the query and, of each
round, the processor seconds of the JVM and the seconds of the job. A round before them warms the JVM up.

One JVM, one slot; RocksDB, mini-batches, checkpoints and object reuse as Nexmark's own configuration has them. Rows go
to the black hole. `events` reads all files and nothing else: what the source costs.

Source: nexmark/nexmark, nexmark-flink/src/main/resources/conf/flink-conf.yaml (settings).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableDescriptor, TableEnvironment

_QUERIES: Final = Path(__file__).with_name("flink_queries.sql")
_PARENT, _USER, _SYSTEM = 1, 11, 12
"""Fields of /proc/PID/stat behind the name: see proc(5)."""
_TIMED: Final = "`dateTime` TIMESTAMP(3)"
_WATERMARK: Final = "WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND"
_COLUMNS: Final[Mapping[str, str]] = {
    "persons": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, "
    f"{_TIMED}, extra STRING, {_WATERMARK}",
    "auctions": "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
    f"{_TIMED}, expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING, {_WATERMARK}",
    "bids": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    f"{_TIMED}, extra STRING, {_WATERMARK}, at_clock AS PROCTIME()",
}


def main(directory: str, rounds: str, *names: str) -> None:
    """Run queries."""
    tables, queries = _environment(directory), _queries()
    for name in names:
        taken = [_run(tables, queries[name]) for _ in range(1 + int(rounds))][1:]
        answer = {"query": name, "cpu_s": [cpu for cpu, _ in taken], "s": [s for _, s in taken]}
        print(json.dumps(answer), flush=True)


def _queries() -> dict[str, list[str]]:
    """Return the statements of each query."""
    parts = re.split(r"^-- (\w+)$", _QUERIES.read_text(), flags=re.MULTILINE)[1:]
    return {
        name: [each for each in text.split(";") if each.strip()]
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def _environment(directory: str) -> TableEnvironment:
    settings = {
        "parallelism.default": "1",
        "pipeline.object-reuse": "true",
        "restart-strategy.type": "none",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "180 s",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "2 s",
        "table.exec.mini-batch.size": "50000",
        "table.local-time-zone": "UTC",
        "taskmanager.memory.managed.size": "512 mb",
    }
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance()
        .in_streaming_mode()
        .with_configuration(configuration)
        .build()
    )
    for kind, columns in _COLUMNS.items():
        path = f"file://{directory}/{kind}.csv"
        tables.execute_sql(
            f"CREATE TABLE {kind} ({columns}) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')"
        )
    return tables


def _run(tables: TableEnvironment, selects: Sequence[str]) -> tuple[float, float]:
    """Run a job; return the JVM's processor seconds for it, and its seconds."""
    statements = tables.create_statement_set()
    for select in selects:
        # Without a schema: it has that of the rows.
        sink = TableDescriptor.for_connector("blackhole").build()
        statements.add_insert(sink, tables.sql_query(select))
    cpu, began = _jvm_cpu_seconds(), time.monotonic()
    statements.execute().wait()
    return _jvm_cpu_seconds() - cpu, time.monotonic() - began


def _jvm_cpu_seconds() -> float:
    """Return the processor seconds of the children of this process so far: Flink's JVM."""
    me, ticks = str(os.getpid()), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        # The name, in brackets, may have spaces.
        try:
            content = path.read_text()
        except OSError:
            continue  # It has ended.
        fields = content.rpartition(")")[2].split()
        if fields[_PARENT] == me:
            ticks += int(fields[_USER]) + int(fields[_SYSTEM])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(*sys.argv[1:])
