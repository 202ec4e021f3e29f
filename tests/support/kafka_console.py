"""Kafka's own console consumer, as an outside reader of committed records."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final

from bench.vs_structured_streaming.maven import KAFKA_TOOLS, java_program
from tests.support.real_kafka import RealKafka

_IDLE_MS: Final = (15_000, 60_000, 180_000)
"""How long it waits for more; longer, if it gave up too soon on a busy machine."""
_SECONDS_MAX: Final = 600.0
_PROCESSED: Final = re.compile(r"Processed a total of (\d+) messages")


def console_records(kafka: RealKafka, topic: str, at_least: int) -> list[tuple[str, str]]:
    """Return keys and values of a topic's committed records, those of a partition in their order.

    Args:
        kafka: The broker.
        topic: Read from its beginning on until no more come.
        at_least: With fewer it is read again, with more patience.
    """
    records: list[tuple[str, str]] = []
    for idle_ms in _IDLE_MS:
        records = _read(kafka, topic, idle_ms)
        if len(records) >= at_least:
            break
    return records


def _read(kafka: RealKafka, topic: str, idle_ms: int) -> list[tuple[str, str]]:
    class_path = os.pathsep.join(map(str, KAFKA_TOOLS.class_path()))
    command = [
        *(java_program(), "-Xmx512m", "-cp", class_path),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", kafka.servers, "--topic", topic, "--from-beginning"),
        *("--isolation-level", "read_committed", "--timeout-ms", str(idle_ms)),
        *("--property", "print.key=true"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    pairs = [line.split("\t", 1) for line in done.stdout.splitlines()]
    # It ends by a time-out, whatever it read; at the end it says how much that was.
    told = _PROCESSED.search(done.stderr)
    assert told is not None, done.stderr[-2_000:]
    assert int(told[1]) == len(pairs)
    return [(key, value) for key, value in pairs]
