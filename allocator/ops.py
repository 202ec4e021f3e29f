"""Etcd's data model as plain values: keys with their history, and transactions as data.

Pure: decisions return these values, and other code performs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

LeaseId = NewType("LeaseId", int)
"""An etcd lease; 0 is none."""

Revision = NewType("Revision", int)
"""A revision of the etcd store; it grows by one with every transaction that writes."""

TXN_OPERATIONS_MAX = 128
"""Etcd's default `--max-txn-ops`; comparisons and operations are counted apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A key as etcd stores it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    """Writes since the key was created, from 1."""
    lease: int
    """The lease the key lives on, 0 for none."""


class CompareTarget(Enum):
    """The field of a key that a comparison looks at."""

    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    LEASE = "lease"
    VALUE = "value"


class CompareResult(Enum):
    """The required relation between the field and the expected value."""

    EQUAL = "equal"
    LESS = "less"


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds if the key's field is as `expected`. An absent key has version, revisions and lease 0.

    With `range_end` it must hold for every key in [key, range_end), and if there are none, for an absent one.
    """

    key: bytes
    target: CompareTarget
    expected: int | bytes
    range_end: bytes = b""
    result: CompareResult = CompareResult.EQUAL

    def __hash__(self) -> int:
        # Only the key is hashed: few comparisons share one, and batches hash very many of them.
        return hash(self.key)

    @staticmethod
    def mod_revision(key: bytes, revision: int) -> Compare:
        """Hold if the key was last written at `revision`; 0 means absent."""
        return Compare(key, CompareTarget.MOD_REVISION, revision)

    @staticmethod
    def create_revision(key: bytes, revision: int) -> Compare:
        """Hold if the key was created at `revision`; 0 means absent."""
        return Compare(key, CompareTarget.CREATE_REVISION, revision)

    @staticmethod
    def absent(key: bytes) -> Compare:
        """Hold if the key does not exist."""
        return Compare(key, CompareTarget.CREATE_REVISION, 0)

    @staticmethod
    def none_between(key: bytes, range_end: bytes) -> Compare:
        """Hold if there is no key in [key, range_end)."""
        return Compare(key, CompareTarget.CREATE_REVISION, 0, range_end)

    @staticmethod
    def none_created_after(prefix: bytes, revision: int) -> Compare:
        """Hold if no key that starts with `prefix` was created after `revision`."""
        return Compare(
            prefix,
            CompareTarget.CREATE_REVISION,
            revision + 1,
            prefix_range_end(prefix),
            CompareResult.LESS,
        )

    @staticmethod
    def none_written_after(prefix: bytes, revision: int) -> Compare:
        """Hold if no key that starts with `prefix` was created or written after `revision`."""
        return Compare(
            prefix,
            CompareTarget.MOD_REVISION,
            revision + 1,
            prefix_range_end(prefix),
            CompareResult.LESS,
        )


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key."""

    key: bytes
    value: bytes
    lease: int = 0
    ignore_lease: bool = False
    """Keep the lease that the key has; the key must exist."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key, or with `range_end` every key in [key, range_end)."""

    key: bytes
    range_end: bytes = b""


@dataclass(frozen=True, slots=True)
class Get:
    """Read a key, or with `range_end` every key in [key, range_end), within a transaction."""

    key: bytes
    range_end: bytes = b""


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnCheckpoint:
    """Comparisons and operations that belong in one transaction and are never split."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]
    subject: str = field(default="", compare=False)
    """The subject of the checkpoint (an item id), for logs and for isolating a culprit."""


def prefix_range_end(prefix: bytes) -> bytes:
    """Return the end of the half-open range that holds every key starting with `prefix`.

    A prefix of 0xff bytes alone has no end; etcd writes that as a single NUL byte.
    """
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        return b"\x00"
    return trimmed[:-1] + bytes([trimmed[-1] + 1])
