"""Recovery hints: their encoding, the choice between them, and their keys in etcd.

They are stored as JSON with the wire's field names, numbers as numbers; protobuf is read, too.

    {hint_prefix}/{shard id}.primary       of the current recorder
    {hint_prefix}/{shard id}.backup.{n}    of past recoveries, newest first

Source: gazette/core consumer/recovery.go (encoding, and the order in which hints are tried),
consumer/protocol/shard_spec_extensions.go (HintPrimaryKey, HintBackupKeys).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError

from broadsheet.runtime.documents import decode_json
from broadsheet.runtime.formats import MIN_READER, Format, LaterFormatError
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

INTEGER_FIELDS = frozenset({"fnode", "first_seq_no", "first_offset", "last_seq_no", "last_offset"})
"""64-bit fields: protobuf's own JSON writes them as text, the stored JSON as numbers."""


HINTS: Final = Format("these hints", "let a member of that release recover the shard")
"""Its `min_reader` is a field beside those of `FSMHints`."""

_FIELDS: Final = frozenset(FSMHints.DESCRIPTOR.fields_by_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHints:
    """A shard's stored hints; None where a key was never written."""

    primary: FSMHints | None = None
    backups: tuple[FSMHints | None, ...] = ()
    """Newest first, one for each backup that the spec asks for."""

    def picked(self, log: str) -> FSMHints:
        """Return the hints to recover from: primary, else newest backup, else hints with only the name of `log`."""
        for hints in (self.primary, *self.backups):
            if hints is not None:
                return hints
        return FSMHints(log=log)

    def all(self) -> Sequence[FSMHints]:
        """Return all existing hints, newest first."""
        return [each for each in (self.primary, *self.backups) if each is not None]


def encode_hints(hints: FSMHints) -> bytes:
    """Encode hints for storage."""
    document = MessageToDict(hints, preserving_proto_field_name=True)
    return msgspec.json.encode(_with_numbers(document))


def decode_hints(value: bytes) -> FSMHints:
    """Decode stored hints. Fields that this release does not know are left out.

    Raises:
        LaterFormatError: they need a later reader.
        ValueError: they are neither JSON nor protobuf of the expected shape.
    """
    try:
        if value.startswith(b"{"):
            document = decode_json(value, dict)
            # Something else would have no field in common with hints, and pass for hints of nothing.
            if document and _FIELDS.isdisjoint(document):
                raise ValueError(f"unknown field {min(document)!r}, and none that is known")
            HINTS.check(document.get(MIN_READER, 1))
            hints = ParseDict(document, FSMHints(), ignore_unknown_fields=True)
        else:
            hints = FSMHints.FromString(value)
    except LaterFormatError:
        raise
    except (ParseError, DecodeError, ValueError, RecursionError, AttributeError) as error:
        raise ValueError(f"expected FSMHints as JSON or protobuf: {error}") from error
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


def has_recovery_log(spec: ShardSpec) -> bool:
    """Tell whether the shard keeps its state in a recovery log; without one it has no hints."""
    return bool(spec.recovery_log_prefix)


def recovery_log_of(spec: ShardSpec) -> str:
    """Return the journal of the shard's recovery log, or "" if it has none."""
    return f"{spec.recovery_log_prefix}/{spec.id}" if has_recovery_log(spec) else ""


def history_of(hints: FSMHints) -> frozenset[str]:
    """Return the logs that hold a part of what hints lead to: more than one of a shard that began as another's fork."""
    return frozenset(
        segment.log or hints.log for node in hints.live_nodes for segment in node.segments
    )


def primary_hints_key(spec: ShardSpec) -> bytes:
    """Return the key of the primary hints."""
    return f"{spec.hint_prefix}/{spec.id}.primary".encode()


def backup_hints_keys(spec: ShardSpec) -> tuple[bytes, ...]:
    """Return the keys of the backup hints, newest first."""
    return tuple(
        f"{spec.hint_prefix}/{spec.id}.backup.{index}".encode()
        for index in range(spec.hint_backups)
    )
