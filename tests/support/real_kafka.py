"""A real Kafka broker of its Maven artifacts, in KRaft mode, alone and with one copy of everything."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from bench.vs_structured_streaming.maven import KAFKA, java_program
from broadsheet.embedded.child_process import ChildProcess
from tests.support.certificates import Certificate
from tests.support.eventually import eventually_sync

_START_SECONDS = 600.0
"""Even where many other programs have the processors."""
# Compiled once and not twice: a test's broker does not live long enough for the second time to pay.
_JAVA = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
offsets.retention.check.interval.ms=1000
auto.create.topics.enable=false
"""


@dataclass(frozen=True, slots=True)
class SecureListener:
    """A second door, with TLS and passwords (SCRAM and PLAIN)."""

    certificate: Certificate
    """Of 127.0.0.1."""
    user: str
    password: str

    def properties(self, directory: Path) -> dict[str, str]:
        """Return the broker's settings, and write the key store that they name."""
        store = directory / "broker.pem"
        key = load_pem_private_key(self.certificate.key_file.read_bytes(), password=None)
        # Kafka reads keys of PKCS 8 alone.
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        store.write_bytes(pem + self.certificate.cert_file.read_bytes())
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.location": str(store),
            "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'user_{self.user}="{self.password}";'
            ),
            "listener.name.secure.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }

    @property
    def scram(self) -> str:
        """The user, as the broker's storage is told of it."""
        return f"SCRAM-SHA-512=[name={self.user},password={self.password}]"


class RealKafka:
    """A broker, which may be killed and started again over its data. A context manager."""

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        *,
        secure: SecureListener | None = None,
    ) -> None:
        """Describe it.

        Args:
            directory: Of its data; made if missing.
            properties: More of its settings.
            secure: A second listener.
        """
        self._directory = directory
        self._secure = secure
        self._secure_port = 0 if secure is None else _free_port()
        self.secure_servers = f"127.0.0.1:{self._secure_port}"
        self._port, self._controller = _free_port(), _free_port()
        self._properties = dict(properties or {})
        self.servers = f"127.0.0.1:{self._port}"
        self._child: ChildProcess | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Settings of a client of it, which does not print."""
        return {"bootstrap.servers": self.servers, "log_level": 0}

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "server.properties"
        listeners = f"PLAINTEXT://{self.servers}"
        cluster = ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(properties)]
        if self._secure is not None:
            self._properties |= self._secure.properties(self._directory)
            listeners += f",SECURE://{self.secure_servers}"
            cluster += ["--add-scram", self._secure.scram]
        more = "".join(f"{name}={value}\n" for name, value in self._properties.items())
        logs = self._directory / "logs"
        properties.write_text(
            _PROPERTIES.format(listeners=listeners, controller=self._controller, logs=logs) + more
        )
        subprocess.run(
            [*self._java(), "kafka.tools.StorageTool", "format", *cluster],
            check=True,
            capture_output=True,
        )
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and return once transactions can begin, and offsets of groups are told."""
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

        self._child = child = ChildProcess(
            [*self._java(), "kafka.Kafka", str(self._directory / "server.properties")],
            directory=self._directory,
            log_file=self._directory / "broker.log",
        )
        producer = Producer({**self.config, "transactional.id": f"start-{uuid4().hex}"})

        def is_ready() -> bool:
            assert child.exit_code is None, (self._directory / "broker.log").read_text()[-2000:]
            try:
                producer.init_transactions(1.0)
            except KafkaException:
                return False
            return True

        def tells_offsets() -> bool:
            try:
                consumer.committed([TopicPartition("none", 0)], 1.0)
            except KafkaException:
                return False
            return True

        eventually_sync(is_ready, timeout_seconds=_START_SECONDS, message="Kafka is ready")
        consumer = Consumer({**self.config, "group.id": "start"})
        eventually_sync(tells_offsets, timeout_seconds=_START_SECONDS, message="groups are ready")
        consumer.close()

    def kill(self) -> None:
        """End it at once, with `kill -9`."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def pause(self, *, paused: bool) -> None:
        """Stop its process, or let it go on."""
        assert self._child is not None
        os.kill(self._child.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic; settings have underscores for dots."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        named = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, 1, config=named)
        admin = AdminClient(self.config)
        for created in admin.create_topics([new]).values():
            created.result(30)

    def delete(self, topic: str) -> None:
        """Delete a topic; it is gone at the return."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.config)
        for deleted in admin.delete_topics([topic]).values():
            deleted.result(30)

    def configure(self, topic: str, **config: str) -> None:
        """Change settings of a topic, which have underscores for dots."""
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs export only some of its names
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = AdminClient(self.config)
        for altered in admin.incremental_alter_configs([resource]).values():
            altered.result(30)

    def _java(self) -> list[str]:
        class_path = os.pathsep.join(map(str, KAFKA.class_path()))
        return [java_program(), *_JAVA, "-cp", class_path]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
