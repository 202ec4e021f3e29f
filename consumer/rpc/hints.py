"""Recovery hints in etcd: read together, as of one revision; written as JSON, read as JSON or protobuf.

Source: gazette/core consumer/recovery.go (fetchHints), consumer/recoverylog (encoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError

from allocator.core.ops import Get, KeyValue
from allocator.errors import KeyDecodeError
from allocator.etcd.api import Etcd
from consumer.core.hint_keys import (
    backup_hints_keys,
    has_recovery_log,
    primary_hints_key,
    recovery_log_of,
)
from consumer.protocol.recorded_op_pb2 import FSMHints
from consumer.protocol.shard_pb2 import ShardSpec

BACKUPS_READ_MAX = 127
"""Backups read in one transaction beside the primary hints: etcd takes 128 operations."""

INTEGER_FIELDS = frozenset({"fnode", "first_seq_no", "first_offset", "last_seq_no", "last_offset"})
"""64-bit fields, which protobuf's own JSON writes as text, and the stored JSON as numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHints:
    """A shard's hints; None where a key was never written."""

    primary: FSMHints | None = None
    backups: tuple[FSMHints | None, ...] = ()
    """Newest first, one for each backup that the spec asks for."""


async def fetch_hints(etcd: Etcd, spec: ShardSpec) -> StoredHints:
    """Read a shard's hints. A shard without a recovery log has none.

    Raises:
        KeyDecodeError: a value is malformed, or of another recovery log than the spec names.
        EtcdUnavailableError: etcd did not answer.
    """
    if not has_recovery_log(spec):
        return StoredHints()
    keys = (primary_hints_key(spec), *backup_hints_keys(spec)[:BACKUPS_READ_MAX])
    result = await etcd.txn((), tuple(Get(key) for key in keys))
    hints = [_decode_or_none(kvs, spec) for kvs in result.gets]
    return StoredHints(primary=hints[0], backups=tuple(hints[1:]))


def encode_hints(hints: FSMHints) -> bytes:
    """Return hints as they are stored: JSON with the wire's field names, numbers as numbers."""
    document = MessageToDict(hints, preserving_proto_field_name=True)
    return msgspec.json.encode(_with_numbers(document))


def decode_hints(value: bytes) -> FSMHints:
    """Return stored hints.

    Raises:
        ValueError: they are neither JSON nor protobuf of the expected shape.
    """
    try:
        if value.startswith(b"{"):
            return ParseDict(msgspec.json.decode(value), FSMHints())
        return FSMHints.FromString(value)
    except (ParseError, DecodeError, msgspec.DecodeError) as error:
        raise ValueError(f"expected FSMHints as JSON or protobuf: {error}") from error


def _decode_or_none(kvs: Sequence[KeyValue], spec: ShardSpec) -> FSMHints | None:
    if not kvs:
        return None
    (kv,) = kvs
    try:
        hints = decode_hints(kv.value)
    except ValueError as error:
        raise KeyDecodeError(kv.key, str(error)) from error
    if hints.log != recovery_log_of(spec):
        raise KeyDecodeError(
            kv.key, f"log: expected {recovery_log_of(spec)!r} as in the spec, got {hints.log!r}"
        )
    return hints


def _with_numbers(node: object) -> object:
    if isinstance(node, dict):
        return {
            name: int(value) if name in INTEGER_FIELDS else _with_numbers(value)
            for name, value in node.items()
        }
    if isinstance(node, list):
        return [_with_numbers(element) for element in node]
    return node
