"""Records that a shard sends into other systems: those of one attempt, by the key of their intents.

A system that the checkpoint names and the application does not any more is remembered, so that the application may name
it again later; but what it has not got yet must be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from broadsheet.consumer.application import (
    Application,
    RecordConnection,
    RecordOutput,
    RecordPublisher,
    Shard,
    Store,
)
from broadsheet.consumer.direct.record_intents import parse_intent
from broadsheet.consumer.errors import UnsupportedSpecError
from broadsheet.journals.message.checkpoint import OUTPUT_KEYS
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture, completed
from broadsheet.wire.shard_pb2 import Checkpoint


class RecordOutputs:
    """The connections of one attempt to serve a shard."""

    def __init__(self, connections: Iterable[RecordConnection]) -> None:
        """Bind them; `settle` before anything is published."""
        self._connections = {each.key: each for each in connections}
        self._remembered: dict[str, bytes] = {}
        """Intents without records of systems that the application does not name, by key."""

    @classmethod
    def of(
        cls, application: Application[Any], shard: Shard, *, bytes_max: int, clock: Clock
    ) -> Self:
        """Return the outputs of an application, not opened yet.

        Raises:
            ValidationError: two systems have one name.
        """
        if not isinstance(application, RecordPublisher):
            return cls(())
        systems = {id(each.cluster): each.cluster for each in application.record_outputs}
        keys = [system.key for system in systems.values()]
        for key in keys:
            if keys.count(key) > 1:
                raise ValidationError(
                    f"record_outputs[{key}]", "expected one cluster of this name, got several"
                )
        return cls(
            system.open(shard, bytes_max=bytes_max, clock=clock) for system in systems.values()
        )

    @property
    def are_any(self) -> bool:
        """Report whether checkpoints hold anything of them."""
        return bool(self._connections or self._remembered)

    @property
    def queued_bytes(self) -> int:
        """Bytes of the running transaction's records."""
        return sum(each.queued_bytes for each in self._connections.values())

    @property
    def is_full(self) -> bool:
        """Report whether the running transaction should take no more input."""
        return any(each.is_full for each in self._connections.values())

    def add(
        self,
        output: RecordOutput,
        message: Any,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Add a message to the running transaction; on the worker thread.

        Raises:
            ValidationError: the application does not name this system; or as of `RecordConnection.add`.
        """
        connection = self._connections.get(output.cluster.key)
        if connection is None:
            raise ValidationError(
                "output",
                f"expected one that the application's record_outputs name, got {output.cluster.key}",
            )
        connection.add(output, message, key, headers)

    def take_intents(self) -> dict[str, bytes]:
        """Return the intents of the transaction that closes, by key; on the worker thread."""
        intents = {key: each.take_intent() for key, each in self._connections.items()}
        return intents | self._remembered

    def start(self) -> None:
        """Begin to fence former attempts."""
        for each in self._connections.values():
            each.start()

    def settle(self, checkpoint: Checkpoint, store: Store) -> None:
        """Go on from a restored checkpoint, whose intents become those that are to be acknowledged.

        Raises:
            UnsupportedSpecError: it has records for a system that the application does not name.
            ValidationError, LaterFormatError: an intent is none, or of a later release.
        """
        self._remembered = {}
        for key, content in list(checkpoint.ack_intents.items()):
            if not key.startswith(OUTPUT_KEYS) or key in self._connections:
                continue
            if parse_intent(content, f"ack_intents[{key}]").records:
                raise UnsupportedSpecError(
                    f"record_outputs[{key}]",
                    "expected the cluster of this name: the checkpoint holds records that it has not got yet",
                )
            self._remembered[key] = content
        for key, each in self._connections.items():
            known = checkpoint.ack_intents.get(key, b"")
            checkpoint.ack_intents[key] = each.settle(known, store)

    def acknowledge(
        self, key: str, content: bytes, after: Future[object] | None, *, recovered: bool
    ) -> OpFuture:
        """Send the records of an intent (`RecordConnection.acknowledge`)."""
        connection = self._connections.get(key)
        if connection is None:
            return completed()  # It is only remembered.
        return connection.acknowledge(content, after, recovered=recovered)

    def renew(self) -> None:
        """Keep the systems from forgetting an idle shard, in the background."""
        for each in self._connections.values():
            each.renew()

    def close(self) -> None:
        """End what is under way. Idempotent."""
        for each in self._connections.values():
            each.close()
