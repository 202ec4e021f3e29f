"""Judges what shards say of themselves in etcd: S0 and S4."""

from __future__ import annotations

from typing import Final

from allocator.errors import KeyDecodeError
from allocator.etcd.api import KeyPut
from allocator.keys import AssignmentKey, Keys
from allocator.ops import KeyValue
from allocator.simulation.store import Commit
from consumer.failure_kind import FailureKind
from consumer.protocol.shard_pb2 import ReplicaStatus
from consumer.simulation.application import BROKEN_ON_PURPOSE
from consumer.simulation.history_checker import Witness

ALLOCATOR: Final = "allocator"
_FORESEEN: Final = (FailureKind.TRANSIENT, FailureKind.FENCED)


class Statuses:
    """Sees each revision of etcd."""

    def __init__(self, keys: Keys, witness: Witness) -> None:
        """Take the syntax of keys, and who is told."""
        self._keys = keys
        self._witness = witness
        self._codes: dict[AssignmentKey, ReplicaStatus.Code.ValueType] = {}

    def on_commit(self, commit: Commit) -> None:
        """Take in a revision."""
        for event in commit.events:
            key = event.kv.key if isinstance(event, KeyPut) else event.key
            assignment = self._assignment_or_none(key)
            if assignment is None:
                continue
            if not isinstance(event, KeyPut):
                self._codes.pop(assignment, None)
                continue
            self._judge(commit.author, assignment, event.kv)

    def untrue(self) -> list[str]:
        """Return what is said, and is not so once everything works, in words."""
        return [
            f"{key.member_id} says {ReplicaStatus.Code.Name(code)} at slot {key.slot}"
            for key, code in self._codes.items()
            if code != (ReplicaStatus.STANDBY if key.slot else ReplicaStatus.PRIMARY)
        ]

    def _judge(self, author: str, assignment: AssignmentKey, kv: KeyValue) -> None:
        status = ReplicaStatus.FromString(kv.value)
        self._codes[assignment] = status.code
        if author == ALLOCATOR:
            return  # It moves an assignment with what was said of it.
        if author != str(assignment.member_id):
            self._witness.violate("S4", f"{author} says {status} of {assignment}")
        if kv.create_revision == kv.mod_revision or not kv.lease:
            self._witness.violate("S4", f"{author} says {status} of {assignment}, which was gone")
        self._look_at_failure(status)

    def _look_at_failure(self, status: ReplicaStatus) -> None:
        """Judge why a shard says that it failed."""
        text = "; ".join(status.errors)
        foreseen = any(f"({kind.value})" in text for kind in _FORESEEN)
        if status.code == ReplicaStatus.FAILED and not foreseen and BROKEN_ON_PURPOSE not in text:
            self._witness.violate("S0", f"a shard failed: {text}")

    def _assignment_or_none(self, key: bytes) -> AssignmentKey | None:
        try:
            parsed = self._keys.parse(key)
        except KeyDecodeError:
            return None
        return parsed if isinstance(parsed, AssignmentKey) else None
