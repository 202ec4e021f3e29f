"""The contract of tables of answers: which commands a shard has executed, and what came of them."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

StoreT_contra = TypeVar("StoreT_contra", contravariant=True)


class KeptAnswer(msgspec.Struct, frozen=True):
    """The record of a command that a shard has executed."""

    at_ms: int
    """Time at which the command was published, milliseconds since the Unix epoch."""
    content: bytes
    """Opaque bytes, some hundred of them at most beside the response."""


class Answers(Protocol[StoreT_contra]):
    """Keeps answers in an application's store, in the shard's running transaction.

    All methods are called on the shard's worker thread, and see what the running transaction has kept.
    """

    def get(self, store: StoreT_contra, command_id: str) -> KeptAnswer | None:
        """Return the answer of a command; None if there is none."""
        ...

    def keep(self, store: StoreT_contra, command_id: str, answer: KeptAnswer) -> None:
        """Keep the answer of a command that has none. It commits with the running transaction, or not at all."""
        ...

    def forget(self, store: StoreT_contra, before_ms: int, limit: int) -> int:
        """Remove answers of commands published before a time; return how many: `limit` at most, the oldest first."""
        ...
