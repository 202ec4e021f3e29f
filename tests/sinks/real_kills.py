"""Kills of sinks at every step of a transaction, and of Kafka itself. Too slow for CI: `make nightly-sinks`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.sinks.kafka_lives import KEYS
from tests.support.kafka_console import console_records
from tests.support.kafka_sinks import CommittedReader
from tests.support.real_kafka import RealKafka

KILLS = int(os.environ.get("SINK_KILLS", "100"))
"""Processes of each sink that are killed, in all of its shards together."""
SHARDS = 4
"""They die at the same time: a life mostly waits, for Kafka to start or for the end of a zombie's transaction."""
pytestmark = pytest.mark.timeout(7_200)
Report = dict[str, int]


def run_lives(subject: str, configs: Sequence[Mapping[str, Any]]) -> list[Report]:
    """Run lives of shards until each has its part of the kills; return of each how many ended where."""
    command = [sys.executable, "-m", "tests.sinks.sink_lives", f"tests.sinks.{subject}"]
    seeded = [
        {**each, "kills": KILLS // SHARDS, "seed": random.randrange(2**32)} for each in configs
    ]
    with ExitStack() as files:
        # Files, because a life that logs into a full pipe stops until somebody reads it.
        outputs = [files.enter_context(TemporaryFile("w+")) for _ in seeded]
        runs = [
            subprocess.Popen([*command, json.dumps(config)], stdout=output)
            for config, output in zip(seeded, outputs, strict=True)
        ]
        assert [run.wait() for run in runs] == [0] * len(runs)
        for output in outputs:
            output.seek(0)
        last_lines = [output.read().splitlines()[-1] for output in outputs]
    reports: list[Report] = [json.loads(line) for line in last_lines]
    total = sum(map(Counter, reports), Counter())
    print(subject, dict(total))
    # A run that is through before shows less than it says.
    assert total["kills"] == KILLS // SHARDS * SHARDS
    assert total["zombies"]
    return reports


def run_kafka_lives(
    kafka: RealKafka,
    subject: str,
    directory: Path,
    *,
    meanwhile: AbstractContextManager[None] | None = None,
) -> None:
    """Run lives of shards, each with a topic of its own, in a context; then read the topics."""
    names = [f"kills-{uuid4().hex[:8]}" for _ in range(SHARDS)]
    for name in names:
        kafka.create(name, 3)
    configs = [
        {
            "servers": kafka.servers,
            "topic": name,
            "root": f"/{name}",
            "file": str(directory / name),
        }
        for name in names
    ]
    with meanwhile or nullcontext():
        reports = run_lives(subject, configs)
    for name, report in zip(names, reports, strict=True):
        require_once_in_order(kafka, name, report["records"])
    places = set(import_module(f"tests.sinks.{subject}").PLACES)
    missing = {place for place in places if not any(report.get(place) for report in reports)}
    assert all(place.startswith("zombie-") for place in missing), missing


def require_once_in_order(kafka: RealKafka, topic: str, records: int) -> None:
    """Kafka's own reader of committed records sees each number once, and those of a key in order."""
    reader = CommittedReader(kafka.config, topic, partitions=3)
    reader.catch_up()  # Until no transaction is open below the ends.
    reader.close()
    numbers: dict[str, list[int]] = {}
    for key, value in console_records(kafka, topic, records):
        message = json.loads(value)
        assert key == message["key"]
        numbers.setdefault(key, []).append(message["n"])
    assert numbers == {f"k{key}": list(range(key, records, KEYS)) for key in range(KEYS)}


@pytest.mark.parametrize("subject", ["kafka_lives", "direct_lives"])
def test_sink_that_is_killed_anywhere_sends_each_record_once_in_order(
    real_kafka: RealKafka, tmp_path: Path, subject: str
) -> None:
    """Before and after each step of a transaction; stopped processes go on behind their successors, and are fenced."""
    run_kafka_lives(real_kafka, subject, tmp_path)


@pytest.mark.parametrize("subject", ["kafka_lives", "direct_lives"])
def test_sink_and_kafka_that_are_killed_send_each_record_once_in_order(
    tmp_path: Path, subject: str
) -> None:
    """Kafka is killed with open transactions, and paused, while its clients are killed, too."""
    with RealKafka(tmp_path / "kafka") as kafka:
        stop = threading.Event()
        troubles: list[str] = []

        def trouble() -> None:
            chooser = random.Random(1)
            while not stop.wait(chooser.uniform(2.0, 8.0)):
                if chooser.random() < 0.3:
                    kafka.pause(paused=True)
                    stop.wait(chooser.uniform(0.5, 3.0))
                    kafka.pause(paused=False)
                    troubles.append("paused")
                else:
                    kafka.kill()
                    kafka.start()
                    troubles.append("killed")

        def run() -> None:
            try:
                trouble()
            except Exception as error:
                troubles.append(f"ended by {error}")

        thread = threading.Thread(target=run)

        @contextmanager
        def troubled() -> Iterator[None]:
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()

        run_kafka_lives(kafka, subject, tmp_path, meanwhile=troubled())
        print(subject, dict(Counter(troubles)))
        assert "killed" in troubles
        assert set(troubles) <= {"killed", "paused"}, troubles


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_sink_that_is_killed_anywhere_has_each_row_in_the_table_once(
    tmp_path: Path, kind: str
) -> None:
    """Before and after the checkpoint's file and the table's commit; a stopped holder is fenced when it goes on."""
    directories = [tmp_path / str(number) for number in range(SHARDS)]
    for directory in directories:
        directory.mkdir()
    configure, rows_in_order = TABLES[kind]

    reports = run_lives(
        "table_lives", [{"root": f"/{kind}", **configure(each)} for each in directories]
    )

    for directory, report in zip(directories, reports, strict=True):
        assert rows_in_order(directory) == list(range(report["records"]))


def delta_config(directory: Path) -> dict[str, Any]:
    """Return the table of a shard."""
    return {"table": str(directory / "table")}


def delta_rows(directory: Path) -> list[int]:
    """Return the rows as delta-rs sees them, commit by commit."""
    table = DeltaTable(str(directory / "table"))
    rows: list[int] = []
    seen: set[str] = set()
    for version in range(table.version() + 1):
        table.load_as_version(version)
        new = set(table.file_uris()) - seen
        seen |= new
        assert len(new) <= 1, new
        for file in new:
            rows += pq.read_table(file).column("n").to_pylist()
    assert sorted(table.to_pyarrow_table().column("n").to_pylist()) == sorted(rows)
    return rows


def iceberg_config(directory: Path) -> dict[str, Any]:
    """Return the table of a shard, and places that its commits have."""
    places = ["before", "after", "timed", "timed", "zombie-before"]
    return {"table": "lake.numbers", "catalog": iceberg_catalog(directory), "places": places}


def iceberg_catalog(directory: Path) -> dict[str, str]:
    """Return a catalog of the shard's own."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }


def iceberg_rows(directory: Path) -> list[int]:
    """Return the rows as pyiceberg sees them, of which those of a file are in order."""
    with closing(load_catalog("default", **iceberg_catalog(directory))) as catalog:
        table = catalog.load_table("lake.numbers")
    files: list[list[int]] = []
    for file in {task.file.file_path for task in table.scan().plan_files()}:
        numbers = pq.read_table(file.removeprefix("file://")).column("n").to_pylist()
        assert numbers == sorted(numbers)
        files.append(numbers)
    return [number for numbers in sorted(files) for number in numbers]


TABLES: dict[str, tuple[Callable[[Path], dict[str, Any]], Callable[[Path], list[int]]]] = {
    "delta": (delta_config, delta_rows),
    "iceberg": (iceberg_config, iceberg_rows),
}
