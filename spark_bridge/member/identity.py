"""Who a member is: an application, a partition of the job, and the attempt of its task.

Spark gives a task no executor id, and may start it anew anywhere; so identity is ours:

    {zone}#{application}-{partition}-{attempt}
"""

from __future__ import annotations

from dataclasses import dataclass


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
