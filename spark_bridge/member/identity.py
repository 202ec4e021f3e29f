"""Identity of a member: an application, a partition of the job, and the attempt of its task.

Spark gives a task no executor id, and may restart it anywhere, so members have an identity of their making:

    {zone}#{application}-{partition}-{attempt}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from broadsheet.runtime.documents import decode_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One attempt of a member's task."""

    application_id: str
    """Spark's id, e.g. `app-20261231235959-0000`."""
    partition: int
    attempt: int
    """From 0; Spark starts the next one once it takes this one for failed."""

    @property
    def attempts_prefix(self) -> str:
        """Prefix of the suffixes of all attempts of this task; the attempt's number follows."""
        return f"{self.application_id}-{self.partition}-"

    @property
    def suffix(self) -> str:
        """The member's suffix in etcd."""
        return f"{self.attempts_prefix}{self.attempt}"


def parse_suffix(suffix: str) -> Incarnation | None:
    """Return the incarnation of a suffix; None if no task made it."""
    application_id, _, rest = suffix.rpartition("-")
    application_id, _, partition = application_id.rpartition("-")
    if not application_id or not (_is_number(partition) and _is_number(rest)):
        return None
    return Incarnation(application_id=application_id, partition=int(partition), attempt=int(rest))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


LOCAL_EXECUTOR = "driver"
"""Spark's id for the executor of a local master, which is the driver."""
_EXECUTOR_OPTION = "--executor-id"
LOG_VARIABLE = "SPARK_LOG_URL_STDERR"
"""Environment variable of an executor that names the page of its log."""


class Host(msgspec.Struct, frozen=True):
    """The executor of one attempt. The newest of each task is kept in etcd as JSON, because Spark does not tell it."""

    partition: int
    attempt: int
    executor_id: str
    """Spark's id."""
    log_url: str = ""
    """Page on which Spark shows the member's log, or its file; empty if the cluster manager does not tell."""


def host_of(incarnation: Incarnation, *, executor_command: Sequence[str], log_url: str) -> Host:
    """Return the host of an incarnation.

    Args:
        incarnation: The attempt.
        executor_command: Command line of the JVM above the task's process.
        log_url: The page or file of its log.
    """
    return Host(
        partition=incarnation.partition,
        attempt=incarnation.attempt,
        executor_id=executor_id_of(executor_command),
        log_url=log_url,
    )


def executor_id_of(command: Sequence[str]) -> str:
    """Return the id from an executor's command line, where standalone, YARN and Kubernetes all pass it."""
    for option, value in pairwise(command):
        if option == _EXECUTOR_OPTION:
            return value
    return LOCAL_EXECUTOR


def host_key(prefix: bytes, partition: int) -> bytes:
    """Return the key of a task's host."""
    return prefix + b"%d" % partition


def encode_host(host: Host) -> bytes:
    """Return a host's value in etcd."""
    return msgspec.json.encode(host)


def decode_host(value: bytes) -> Host:
    """Return the host of a value in etcd.

    Raises:
        DocumentError: the value is not a host.
    """
    return decode_json(value, Host)
