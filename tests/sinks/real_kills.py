"""Kills of sinks at every step of a transaction, and of Kafka itself. Too slow for CI: `make nightly-sinks`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.sinks.kafka_lives import KEYS
from tests.support.kafka_sinks import CommittedReader
from tests.support.real_kafka import RealKafka

KILLS = int(os.environ.get("SINK_KILLS", "300"))
pytestmark = pytest.mark.timeout(3_000)


def run_lives(subject: str, **config: Any) -> dict[str, int]:
    """Run lives of a sink until everything is out; return how many ended where."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sinks.sink_lives", subject, json.dumps(config)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return report


def require_once_in_order(kafka: RealKafka, topic: str, records: int) -> None:
    """An outside reader of committed records sees each number once, and those of a key in order."""
    reader = CommittedReader(kafka.config, topic, partitions=3)
    numbers: dict[str, list[int]] = {}
    for _, key, value in reader.catch_up():
        message = json.loads(value or b"")
        assert key == message["key"].encode()
        numbers.setdefault(message["key"], []).append(message["n"])
    reader.close()
    assert numbers == {f"k{key}": list(range(key, records, KEYS)) for key in range(KEYS)}


@pytest.mark.parametrize("subject", ["kafka_lives", "direct_lives"])
def test_sink_that_is_killed_anywhere_sends_each_record_once_in_order(
    real_kafka: RealKafka, tmp_path: Path, subject: str
) -> None:
    """Before and after each step of a transaction; stopped processes go on behind their successors, and are fenced."""
    topic, records = f"kills-{uuid4().hex[:8]}", KILLS * 40
    real_kafka.create(topic, 3)

    report = run_lives(
        f"tests.sinks.{subject}",
        servers=real_kafka.servers,
        topic=topic,
        root=f"/{topic}",
        records=records,
        lives=KILLS,
        seed=random.randrange(2**32),
        file=str(tmp_path / "store"),
    )

    print(subject, report)
    places = set(import_module(f"tests.sinks.{subject}").PLACES)
    missing = places - {each for each in report if report[each]}
    assert all(place.startswith("zombie-") for place in missing), missing
    assert report["zombies"]
    require_once_in_order(real_kafka, topic, records)


@pytest.mark.parametrize("subject", ["kafka_lives", "direct_lives"])
def test_sink_and_kafka_that_are_killed_send_each_record_once_in_order(
    tmp_path: Path, subject: str
) -> None:
    """Kafka is killed with open transactions, and paused, while its clients are killed, too."""
    topic, records = f"both-{uuid4().hex[:8]}", KILLS // 3 * 40
    with RealKafka(tmp_path / "kafka") as kafka:
        kafka.create(topic, 3)
        stop = threading.Event()
        troubles: list[str] = []

        def trouble() -> None:
            chooser = random.Random(1)
            while not stop.wait(chooser.uniform(3.0, 8.0)):
                if chooser.random() < 0.5:
                    kafka.pause(paused=True)
                    stop.wait(chooser.uniform(0.5, 3.0))
                    kafka.pause(paused=False)
                    troubles.append("paused")
                else:
                    kafka.kill()
                    kafka.start()
                    troubles.append("killed")

        thread = threading.Thread(target=trouble)
        thread.start()
        try:
            report = run_lives(
                f"tests.sinks.{subject}",
                servers=kafka.servers,
                topic=topic,
                root=f"/{topic}",
                records=records,
                lives=KILLS // 3,
                seed=random.randrange(2**32),
                file=str(tmp_path / "store"),
            )
        finally:
            stop.set()
            thread.join()
        print(subject, report, {each: troubles.count(each) for each in set(troubles)})
        assert "killed" in troubles
        require_once_in_order(kafka, topic, records)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_sink_that_is_killed_anywhere_has_each_row_in_the_table_once(
    tmp_path: Path, kind: str
) -> None:
    """Before and after the checkpoint's file and the table's commit; a stopped holder is fenced when it goes on."""
    records = KILLS // 3 * 40
    config: dict[str, Any] = {"table": str(tmp_path / "table")}
    if kind == "iceberg":
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"file://{tmp_path}/warehouse",
        }
        places = ["before", "after", "timed", "timed", "zombie-before"]
        config = {"table": "lake.numbers", "catalog": catalog, "places": places}

    report = run_lives(
        "tests.sinks.table_lives",
        root=f"/{kind}",
        records=records,
        lives=KILLS // 3,
        seed=random.randrange(2**32),
        **config,
    )

    print(kind, report)
    assert report["zombies"]
    if kind == "delta":
        rows = DeltaTable(config["table"]).to_pyarrow_table()
    else:
        rows = (
            load_catalog("default", **config["catalog"])
            .load_table("lake.numbers")
            .scan()
            .to_arrow()
        )
    assert sorted(rows.column("n").to_pylist()) == list(range(records))
