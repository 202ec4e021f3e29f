"""A Kafka cluster for tests, and topics that producers write to, each call in a thread."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from broadsheet.embedded.child_process import ChildProcess
from tests.support.eventually import eventually_sync

_SERVES = re.compile(r"serves (\S+)\n")
PARTITIONS = 4
"""Of every topic that is not created otherwise."""
_CONTROLS: dict[str, Path] = {}
"""Sockets for commands, by `bootstrap.servers`."""


@contextmanager
def running_kafka() -> Iterator[str]:
    """Run a cluster, and yield its `bootstrap.servers`."""
    with tempfile.TemporaryDirectory(prefix="broadsheet-kafka-") as directory:
        log_file, control = Path(directory, "log"), Path(directory, "control")
        program = Path(__file__).with_name("kafka_process.py")
        server = ChildProcess(
            [sys.executable, "-P", str(program), str(control)],
            directory=Path(directory),
            log_file=log_file,
        )
        try:
            eventually_sync(
                lambda: _SERVES.search(log_file.read_text()) is not None,
                timeout_seconds=30,
                message="Kafka serves",
            )
            found = _SERVES.search(log_file.read_text())
            assert found is not None
            _CONTROLS[found[1]] = control
            yield found[1]
        finally:
            server.terminate(timeout_seconds=5)


class TestTopic:
    """A topic of one test's own."""

    __test__ = False

    def __init__(self, servers: str) -> None:
        from confluent_kafka import Producer

        self.name = f"topic-{uuid4().hex[:12]}"
        self.config: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 0}
        self._control = _CONTROLS[servers]
        self._producer = Producer({**self.config, "linger.ms": 0})
        self._transactional: Producer | None = None

    def name_of(self, partition: int) -> str:
        """Return what the messages of a partition are called."""
        return f"kafka/{self.name}/{partition}"

    async def create(self, partitions: int) -> None:
        """Create it with a number of partitions; otherwise it gets `PARTITIONS` when it is first asked for."""
        await self._command(f"create {self.name} {partitions}")

    async def delete(self) -> None:
        """Delete it."""
        await self._command(f"delete {self.name}")

    async def trim(self, partition: int, offset: int) -> None:
        """Delete the messages of a partition below an offset, as retention does."""
        await self._command(f"trim {self.name} {partition} {offset}")

    async def _command(self, command: str) -> None:
        reader, writer = await asyncio.open_unix_connection(self._control)
        try:
            writer.write(f"{command}\n".encode())
            assert await reader.readline() == b"done\n", command
        finally:
            writer.close()

    async def put(
        self, key: str, numbers: Sequence[int], *, partition: int = 0, **options: Any
    ) -> None:
        """Write messages {"key": key, "n": number}."""
        contents = [json.dumps({"key": key, "n": number}).encode() for number in numbers]
        await self.put_raw(contents, partition=partition, key=key, **options)

    async def put_raw(
        self, contents: Sequence[bytes | None], *, partition: int = 0, **options: Any
    ) -> None:
        """Write values."""

        def write() -> None:
            for content in contents:
                self._producer.produce(self.name, content, partition=partition, **options)
            assert self._producer.flush(10) == 0

        await asyncio.to_thread(write)

    async def put_with_header(self, key: str, number: int, *, name: bytes) -> None:
        """Write one message to partition 0 with a header of any name."""
        content = json.dumps({"key": key, "n": number}).encode()
        await self._command(f"header {self.name} {name.hex()} {content.hex()}")

    async def put_transaction(self, key: str, numbers: Sequence[int]) -> None:
        """Write the same to partition 0 as a transaction of Kafka's."""
        from confluent_kafka import Producer

        def write() -> None:
            if self._transactional is None:
                self._transactional = Producer({**self.config, "transactional.id": self.name})
                self._transactional.init_transactions(10)
            self._transactional.begin_transaction()
            for number in numbers:
                content = json.dumps({"key": key, "n": number}).encode()
                self._transactional.produce(self.name, content, partition=0)
            self._transactional.commit_transaction(10)

        await asyncio.to_thread(write)
