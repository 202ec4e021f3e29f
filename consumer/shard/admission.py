"""May this process serve this shard at all? Asked before anything is restored.

Source: gazette/core consumer/shard.go (servePrimary); the proof against etcd is ours.
"""

from __future__ import annotations

from allocator.core.model import Assignment
from allocator.etcd.api import Etcd
from consumer.errors import AssignmentLostError, UnsupportedSpecError
from consumer.protocol.shard_pb2 import ShardSpec


def check_supported(spec: ShardSpec) -> None:
    """Refuse what this version cannot serve.

    Raises:
        UnsupportedSpecError: the spec has a recovery log.
    """
    # Standbys of such shards will play the log here, and primaries record into it.
    if spec.recovery_log_prefix:
        raise UnsupportedSpecError(
            "recovery_log_prefix",
            f"expected none, got {spec.recovery_log_prefix!r}: recovery logs come in a later version; "
            "leave the field empty and keep the state in an SqlStore or a JsonFileStore",
        )


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
