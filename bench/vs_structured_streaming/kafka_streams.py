"""Kafka Streams under measurement: two instances of `KeySums.java`, exactly once, a commit every 5 ms, a standby each.

`instance` is the kill of one of them; it is not started again until the other has taken over, which happens when its
session ends, 45 s by default.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.vs_structured_streaming.kafka import KafkaBroker, KafkaTopics
from bench.vs_structured_streaming.kafka_runs import KafkaRun
from bench.vs_structured_streaming.maven import COMPILER, KAFKA_STREAMS, java_program
from bench.vs_structured_streaming.results import Measured
from bench.vs_structured_streaming.rows import Chunk
from broadsheet.embedded.child_process import ChildProcess

SYSTEM = "kafka_streams"
INSTANCES = 2
START_SECONDS_MAX = 120.0
_POLL_SECONDS = 0.05
_SOURCE = Path(__file__).with_name("KeySums.java")


def measure(chunks: Sequence[Chunk]) -> Measured:
    """Measure everything once."""
    with (
        tempfile.TemporaryDirectory(prefix="vs-") as name,
        KafkaBroker(Path(name) / "kafka") as kafka,
    ):
        class_path = compile_java(_SOURCE, Path(name) / "classes")
        return KafkaRun(StreamsSystem(class_path), kafka.servers, Path(name)).measure(chunks)


@dataclass(frozen=True, slots=True)
class StreamsSystem:
    """The program, compiled."""

    class_path: str
    name: str = SYSTEM
    kills: Mapping[str, int] = field(default_factory=lambda: {"instance": 1})

    @contextmanager
    def running(self, topics: KafkaTopics, directory: Path) -> Iterator[_Instances]:
        """Start the instances; end them with the block."""
        with ExitStack() as resources:
            instances = _Instances(self.class_path, topics, directory)
            resources.callback(instances.kill_all)
            for _ in range(INSTANCES):
                instances.start()
            instances.wait_until_running()
            yield instances


class _Instances:
    """Processes of one application."""

    def __init__(self, class_path: str, topics: KafkaTopics, directory: Path) -> None:
        self._class_path = class_path
        self._topics = topics
        self._directory = directory
        self._lives = itertools.count()
        self._processes: list[tuple[ChildProcess, Path]] = []

    def start(self) -> None:
        """Start one more."""
        home = self._directory / f"instance-{next(self._lives)}"
        home.mkdir()
        topics = self._topics
        java = [java_program(), "-Xmx1g", "-cp", self._class_path, "KeySums"]
        arguments = [topics.servers, topics.rows, topics.sums, str(home / "state")]
        log_file = home / "log"
        process = ChildProcess([*java, *arguments], directory=home, log_file=log_file)
        self._processes.append((process, log_file))

    def wait_until_running(self) -> None:
        """Wait until all of them have their tasks."""
        deadline = time.monotonic() + START_SECONDS_MAX
        for process, log_file in self._processes:
            while not (log_file.exists() and "started" in log_file.read_text()):
                if process.exit_code is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka Streams: {log_file.read_text()[-2000:]}")
                time.sleep(_POLL_SECONDS)

    def kill(self, what: str) -> None:
        """Kill the oldest one."""
        del what
        process, _ = self._processes.pop(0)
        process.kill()

    def kill_all(self) -> None:
        """Kill what is left."""
        for process, _ in self._processes:
            process.kill()


def compile_java(source: Path, classes: Path) -> str:
    """Compile a program of Kafka Streams; return the class path to run it with.

    Args:
        source: Of one class.
        classes: The directory of what is compiled.
    """
    libraries = os.pathsep.join(map(str, KAFKA_STREAMS.class_path()))
    compiler = os.pathsep.join(map(str, COMPILER.class_path()))
    command = [java_program(), "-cp", compiler, "org.eclipse.jdt.internal.compiler.batch.Main"]
    command += ["--release", "17", "-proc:none", "-cp", libraries, "-d", str(classes)]
    subprocess.run(  # noqa: S603 - the command above
        [*command, str(source)], check=True, capture_output=True
    )
    return os.pathsep.join([str(classes), libraries])
