"""Where a member's task runs, as it tells the driver: Spark knows tasks and executors, but not who is which member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from allocator.documents import decode_json
from spark_bridge.member.identity import Incarnation

LOCAL_EXECUTOR = "driver"
"""What Spark calls the executor of a local master, which is the driver."""
_EXECUTOR_OPTION = "--executor-id"
_LOG_VARIABLE = "SPARK_LOG_URL_STDERR"


class Host(msgspec.Struct, frozen=True):
    """One attempt's place; the newest of each task is kept in etcd as JSON."""

    partition: int
    attempt: int
    executor_id: str
    """As Spark calls it."""
    log_url: str = ""
    """Where Spark's pages show what the member logs; empty if the cluster manager does not tell."""


def host_of(
    incarnation: Incarnation, *, executor_command: Sequence[str], environ: Mapping[str, str]
) -> Host:
    """Return an incarnation's place.

    Args:
        incarnation: Who.
        executor_command: Command line of the JVM above the task's process.
        environ: The process's environment.
    """
    return Host(
        partition=incarnation.partition,
        attempt=incarnation.attempt,
        executor_id=executor_id_of(executor_command),
        log_url=environ.get(_LOG_VARIABLE, ""),
    )


def executor_id_of(command: Sequence[str]) -> str:
    """Return the id in an executor's command line; standalone, YARN and Kubernetes all pass it there."""
    for option, value in pairwise(command):
        if option == _EXECUTOR_OPTION:
            return value
    return LOCAL_EXECUTOR


def host_key(prefix: bytes, partition: int) -> bytes:
    """Return the key of a task's place."""
    return prefix + b"%d" % partition


def encode_host(host: Host) -> bytes:
    """Return what is kept in etcd."""
    return msgspec.json.encode(host)


def decode_host(value: bytes) -> Host:
    """Return what was kept in etcd.

    Raises:
        DocumentError: it is none.
    """
    return decode_json(value, Host)
