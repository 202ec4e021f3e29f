"""Who a member is: an application, a partition of the job, and the attempt of its task.

Spark gives a task no executor id, and may start it anew anywhere; so identity is ours:

    {zone}#{application}-{partition}-{attempt}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from broadsheet.allocator.documents import decode_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One attempt at one member's task."""

    application_id: str
    """Spark's, e.g. `app-20261231235959-0000`."""
    partition: int
    attempt: int
    """From 0; Spark starts the next one once it holds this one for failed."""

    @property
    def attempts_prefix(self) -> str:
        """What the suffixes of all attempts at this task start with; the attempt's number follows."""
        return f"{self.application_id}-{self.partition}-"

    @property
    def suffix(self) -> str:
        """The member's suffix in etcd."""
        return f"{self.attempts_prefix}{self.attempt}"


def parse_suffix(suffix: str) -> Incarnation | None:
    """Return whose suffix this is; None if no task made it."""
    application_id, _, rest = suffix.rpartition("-")
    application_id, _, partition = application_id.rpartition("-")
    if not application_id or not (_is_number(partition) and _is_number(rest)):
        return None
    return Incarnation(application_id=application_id, partition=int(partition), attempt=int(rest))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


# Where a member's task runs, as it tells the driver: Spark knows tasks and executors, but not who
# is which member.

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
