"""Two systems that carry a topic into another, in two processes each: our relay, and Kafka Streams."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bench.vs_structured_streaming.kafka_streams import compile_java
from bench.vs_structured_streaming.maven import java_program
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.relay import Sink, SinkKind, labels_of_sink
from broadsheet.consumer.sources.part import SOURCE_PART
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.wire.labels import label_set, union
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

PARTITIONS: Final = 2
PROCESSES: Final = 2
_START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05
_SOURCE: Final = Path(__file__).with_name("Carry.java")


class Topics(NamedTuple):
    """What is carried where, each of `PARTITIONS`."""

    servers: str
    source: str
    target: str


class Running(Protocol):
    """A system that carries."""

    def kill_one(self) -> None:
        """Kill -9 a process that carries a partition."""


class Carrier(Protocol):
    """A system."""

    @property
    def system(self) -> str:
        """Its name among the params of a figure."""

    @property
    def settings(self) -> str:
        """Which settings it has, among the params of a figure."""

    def running(self, topics: Topics, directory: Path) -> AbstractContextManager[Running]:
        """Start it; end it with the block."""


@dataclass(frozen=True, slots=True)
class RelayCarrier:
    """`TopicRelay`, with nothing beside it but etcd: a shard for each partition, with a standby each."""

    system: str = "broadsheet"
    settings: str = "defaults"

    @contextmanager
    def running(self, topics: Topics, directory: Path) -> Iterator[Running]:
        """Start an etcd and the members."""
        with (
            EmbeddedEtcdProcess(directory / "etcd", listen="tcp") as etcd,
            ExitStack() as resources,
        ):
            members = _Members(etcd.endpoint, directory, resources)
            for _ in range(PROCESSES):
                members.start()
            asyncio.run(members.apply(topics))
            members.wait_until_settled()
            yield members


class _Members:
    def __init__(self, etcd: str, directory: Path, resources: ExitStack) -> None:
        self._etcd, self._directory, self._resources = etcd, directory, resources
        self._names = itertools.count()
        self._members: dict[str, EmbeddedMemberProcess] = {}

    def start(self) -> None:
        name = f"member-{next(self._names)}"
        arguments = ["--etcd", self._etcd, "--root", "/bench/carries", "--suffix", name]
        arguments += ["--port", "0", "--log-level", "warning"]
        arguments += ["--drain-seconds", "0", "--drain-alone-seconds", "0"]
        member = EmbeddedMemberProcess(
            "broadsheet.consumer.relay:TopicRelay",
            arguments,
            log_file=self._directory / f"{name}.log",
        )
        self._resources.callback(member.stop)
        member.wait_until_ready()
        self._members[name] = member

    async def apply(self, topics: Topics) -> None:
        sink = Sink(
            kind=SinkKind.KAFKA,
            to=topics.target,
            from_topic=topics.source,
            settings={"bootstrap.servers": topics.servers},
        )
        changes = []
        for part in range(PARTITIONS):
            labels = union(labels_of_sink(sink), label_set((SOURCE_PART, f"{part}/{PARTITIONS}")))
            spec = ShardSpec(id=f"carries/part-{part:03d}", labels=labels, hot_standbys=1)
            spec.max_txn_duration.FromSeconds(1)
            changes.append(ApplyRequest.Change(upsert=spec))
        async with self._client() as client:
            await client.apply(changes)

    def wait_until_settled(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if asyncio.run(self._is_settled()):
                return
            time.sleep(_POLL_SECONDS)
        raise TimeoutError("the shards have no primary and standby each")

    def kill_one(self) -> None:
        name = asyncio.run(self._with_a_primary())
        self._members.pop(name).kill()

    async def _is_settled(self) -> bool:
        async with self._client() as client:
            shards = (await client.list()).shards
        wanted = [ReplicaStatus.PRIMARY, ReplicaStatus.STANDBY]
        found = [sorted((each.code for each in shard.status), reverse=True) for shard in shards]
        return len(shards) == PARTITIONS and all(codes == wanted for codes in found)

    async def _with_a_primary(self) -> str:
        async with self._client() as client:
            (shard, *_) = (await client.list()).shards
        return next(
            member.suffix
            for member, status in zip(shard.route.members, shard.status, strict=True)
            if status.code == ReplicaStatus.PRIMARY
        )

    def _client(self) -> ShardClient:
        member = next(iter(self._members.values()))
        return ShardClient(member.wait_until_ready(), timeout_seconds=_START_SECONDS)


@dataclass(frozen=True, slots=True)
class StreamsCarrier:
    """Kafka Streams: `exactly_once_v2`, a commit every 5 ms, `linger.ms` 0."""

    classes: Path
    more: Mapping[str, str] = field(default_factory=dict)
    settings: str = "defaults"
    system: str = "kafka_streams"

    @contextmanager
    def running(self, topics: Topics, directory: Path) -> Iterator[Running]:
        """Start the instances."""
        class_path = compile_java(_SOURCE, self.classes)
        with ExitStack() as resources:
            given = [topics.servers, topics.source, topics.target]
            instances = _Instances(class_path, given, self.more, directory, resources)
            for _ in range(PROCESSES):
                instances.start()
            instances.wait_until_running()
            yield instances


class _Instances:
    def __init__(
        self,
        class_path: str,
        given: list[str],
        more: Mapping[str, str],
        directory: Path,
        resources: ExitStack,
    ) -> None:
        self._java = [java_program(), "-Xmx1g", "-cp", class_path, "Carry", *given]
        self._more = [f"{name}={value}" for name, value in more.items()]
        self._directory, self._resources = directory, resources
        self._lives = itertools.count()
        self._processes: list[tuple[ChildProcess, Path]] = []

    def start(self) -> None:
        home = self._directory / f"instance-{next(self._lives)}"
        home.mkdir()
        log_file = home / "log"
        command = [*self._java, str(home / "state"), *self._more]
        process = ChildProcess(command, directory=home, log_file=log_file)
        self._resources.callback(process.kill)
        self._processes.append((process, log_file))

    def wait_until_running(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        for process, log_file in self._processes:
            while not (log_file.exists() and "started" in log_file.read_text()):
                if process.exit_code is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka Streams: {log_file.read_text()[-2000:]}")
                time.sleep(_POLL_SECONDS)

    def kill_one(self) -> None:
        process, _ = self._processes.pop(0)
        process.kill()
