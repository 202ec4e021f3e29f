"""May this process serve this shard at all? Asked before anything is restored.

Source: gazette/core consumer/shard.go (servePrimary); the proof against etcd is ours.
"""

from __future__ import annotations

from allocator.etcd.api import Etcd
from allocator.model import Assignment
from consumer.errors import AssignmentLostError


async def prove_assignment(etcd: Etcd, assignment: Assignment) -> None:
    """Ask etcd itself whether the shard is still ours, before a restore fences whoever has it.

    A process that was stopped for long believes in assignments that are gone. Its commits are fenced; were it to
    restore again, it would fence its successor, which would restore, and so on.

    Raises:
        AssignmentLostError: it is gone, or was made anew.
    """
    observed = assignment.kv
    result = await etcd.get_range(observed.key)
    created = result.kvs[0].create_revision if result.kvs else 0
    if created != observed.create_revision:
        now = f"was made anew at revision {created}" if created else "is gone"
        raise AssignmentLostError(
            f"assignment {observed.key.decode()} {now}; this process no longer serves the shard"
        )
