"""librdkafka's mock cluster in a process of its own: one broker, all in memory.

Topics are made when they are first asked for, with four partitions. Transactions leave the offsets of their ends
unused, as those of Kafka do, but the messages of aborted ones are not hidden, and nothing is stored for the ends, so
that a client notices them only where a partition ends.

It obeys commands on a Unix socket, whose path is its argument: a line for each connection, answered by a line:

    create TOPIC PARTITIONS       delete TOPIC       trim TOPIC PARTITION OFFSET
    header TOPIC NAME VALUE       a message with a header, both in hexadecimal digits: Python's client takes text alone
"""

from __future__ import annotations

import ctypes
import socket
import sys
from pathlib import Path
from typing import Final

import confluent_kafka

TEXT_BYTES: Final = 512
# Tags of `rd_kafka_producev`'s arguments, of librdkafka's header.
_END, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADER = 0, 1, 3, 4, 7, 9
_COPY: Final = 2


class MockCluster:
    """A cluster of the C library that the client brings along."""

    def __init__(self) -> None:
        libraries = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
        (path,) = libraries.glob("librdkafka-*")
        self._library = library = ctypes.CDLL(str(path))
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(library, name).restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        error = ctypes.create_string_buffer(TEXT_BYTES)
        size = ctypes.c_size_t(TEXT_BYTES)
        settings = ctypes.c_void_p(library.rd_kafka_conf_new())
        library.rd_kafka_conf_set(settings, b"log_level", b"0", error, size)
        client = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, size))
        assert client.value, error.value
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
        self._call("set_controller_id", 1)
        settings = ctypes.c_void_p(library.rd_kafka_conf_new())
        for name, value in (("log_level", "0"), ("bootstrap.servers", self.servers)):
            library.rd_kafka_conf_set(settings, name.encode(), value.encode(), error, size)
        self._producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, size))
        assert self._producer.value, error.value

    @property
    def servers(self) -> str:
        """Its `bootstrap.servers`."""
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def obey(self, command: str) -> str:
        """Return `done`, or what went wrong."""
        match command.split():
            case "create", topic, partitions:
                self._call("topic_create", topic.encode(), int(partitions), 1)
            case "delete", topic:
                self._call("topic_delete", topic.encode())
            case "trim", topic, partition, offset:
                end = ctypes.c_int64(int(offset))
                self._call("partition_delete_records", topic.encode(), int(partition), end)
            case "header", topic, name, value:
                self._produce(topic.encode(), bytes.fromhex(name), bytes.fromhex(value))
            case _:
                return f"no such command: {command}"
        return "done"

    def _produce(self, topic: bytes, header: bytes, value: bytes) -> None:
        """Write a message with a header to partition 0."""
        produced = self._library.rd_kafka_producev(
            self._producer,
            *(ctypes.c_int(_TOPIC), ctypes.c_char_p(topic)),
            *(ctypes.c_int(_PARTITION), ctypes.c_int32(0)),
            *(ctypes.c_int(_VALUE), ctypes.c_char_p(value), ctypes.c_size_t(len(value))),
            *(ctypes.c_int(_HEADER), ctypes.c_char_p(header), ctypes.c_char_p(b"v")),
            *(ctypes.c_ssize_t(1), ctypes.c_int(_FLAGS), ctypes.c_int(_COPY), ctypes.c_int(_END)),
        )
        assert produced == 0, produced
        assert self._library.rd_kafka_flush(self._producer, 10_000) == 0

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, f"rd_kafka_mock_{name}")
        status: int = function(self._cluster, *arguments)
        assert status == 0, f"{name}: {status}"


def main() -> None:
    """Serve until terminated; print the address first."""
    cluster = MockCluster()
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(sys.argv[1])
        control.listen()
        sys.stdout.write(f"serves {cluster.servers}\n")
        sys.stdout.flush()
        while True:
            connection, _ = control.accept()
            with connection, connection.makefile("rw") as stream:
                stream.write(cluster.obey(stream.readline()) + "\n")


if __name__ == "__main__":
    main()
