"""The file of a backup: what a cluster is, in lines of JSON.

    {"kind":"backup","version":1,"written_at":"2026-11-27T01:00:00+00:00","by":"broadsheet 0.1.0"}
    {"kind":"journal","spec":{…}}                           as protobuf's JSON
    {"kind":"shard","spec":{…},"hints":{…}}                 hints: of shards with a recovery log, if it has any
    {"kind":"lease","store":"etcd:/orders","record":{…}}    record and attrs as `shardctl leases export` writes it
    {"kind":"end","records":3,"sha256":"…"}                 of all lines above

The last line tells a whole file from one that was cut off, or changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from broadsheet.consumer.recoverylog.hints import decode_hints, encode_hints
from broadsheet.leases.migration.export_file import export_fields, exported_record
from broadsheet.leases.record import LeaseRecord
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.installed_version import installed_version
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

VERSION: Final = 1

# `Any` in this module: JSON.


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard's spec, and the hints from which its log is played."""

    spec: ShardSpec
    hints: FSMHints | None = None


@dataclass(slots=True)
class Backup:
    """Specs, hints and positions of a cluster, as one file keeps them."""

    journals: list[JournalSpec] = field(default_factory=list)
    shards: list[SavedShard] = field(default_factory=list)
    leases: dict[str, list[LeaseRecord]] = field(default_factory=dict)
    """By the address of their store."""


def backup_lines(backup: Backup, *, written_at: datetime) -> Iterator[str]:
    """Yield a backup's lines, each with its end."""
    digest = hashlib.sha256()
    count = 0
    header = {
        "kind": "backup",
        "version": VERSION,
        "written_at": written_at.isoformat(timespec="seconds"),
        "by": f"broadsheet {installed_version()}",
    }
    for count, record in enumerate((header, *_records(backup))):  # noqa: B007 - the last one counts them
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
        digest.update(line.encode())
        yield line
    end = {"kind": "end", "records": count, "sha256": digest.hexdigest()}
    yield json.dumps(end, separators=(",", ":")) + "\n"


def _records(backup: Backup) -> Iterator[Mapping[str, Any]]:
    for spec in backup.journals:
        yield {"kind": "journal", "spec": _as_json(spec)}
    for shard in backup.shards:
        hints = {} if shard.hints is None else {"hints": json.loads(encode_hints(shard.hints))}
        yield {"kind": "shard", "spec": _as_json(shard.spec), **hints}
    for store, records in backup.leases.items():
        for record in records:
            yield {"kind": "lease", "store": store, **export_fields(record)}


def _as_json(spec: JournalSpec | ShardSpec) -> Any:
    return MessageToDict(spec, preserving_proto_field_name=True)


def read_backup(lines: Iterable[str], *, source: str) -> Backup:
    """Return what the lines of a backup say.

    Args:
        lines: Of the file, with their ends.
        source: Name of the file, for errors.

    Raises:
        ValidationError: it is no backup, is not whole, was changed, or was written by a later release.
    """
    backup, digest, end = Backup(), hashlib.sha256(), None
    number = 0
    for number, line in enumerate(lines, start=1):
        place = f"{source}:{number}"
        if end is not None:
            raise ValidationError(place, "expected nothing after the line of kind 'end'")
        record = _object(line, place)
        if number == 1:
            _require_header(record, place)
        elif record.get("kind") == "end":
            end = record
            _require_whole(record, number - 2, digest.hexdigest(), place)
        else:
            _add(backup, record, place)
        digest.update(line.encode())
    if end is None:
        raise ValidationError(
            source, f"it ends after {number} lines without a line of kind 'end': it was cut off"
        )
    return backup


def _object(line: str, place: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValidationError(place, f"expected a line of JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValidationError(place, "expected an object of JSON")
    return record


def _require_header(record: Mapping[str, Any], place: str) -> None:
    if record.get("kind") != "backup":
        raise ValidationError(
            place, "expected a line of kind 'backup', as `shardctl backup create` writes it"
        )
    if record.get("version") != VERSION:
        raise ValidationError(
            f"{place}.version",
            f"expected {VERSION}, got {record.get('version')!r}: restore it with {record.get('by')!r} or later",
        )


def _require_whole(record: Mapping[str, Any], count: int, digest: str, place: str) -> None:
    if record.get("records") != count:
        raise ValidationError(
            place, f"expected {record.get('records')} records before this line, got {count}"
        )
    if record.get("sha256") != digest:
        raise ValidationError(place, "the lines above are not those that were written (sha256)")


def _add(backup: Backup, record: Mapping[str, Any], place: str) -> None:
    try:
        match record.get("kind"):
            case "journal":
                backup.journals.append(ParseDict(record["spec"], JournalSpec()))
            case "shard":
                spec = ParseDict(record["spec"], ShardSpec())
                hints = record.get("hints")
                saved = None if hints is None else decode_hints(json.dumps(hints).encode())
                backup.shards.append(SavedShard(spec, saved))
            case "lease":
                lease = exported_record(record, place)
                backup.leases.setdefault(str(record["store"]), []).append(lease)
            case kind:
                raise ValidationError(
                    f"{place}.kind", f"expected journal, shard, lease or end, got {kind!r}"
                )
    except ValidationError:
        raise
    except (ParseError, KeyError, TypeError, ValueError) as error:
        raise ValidationError(place, f"{type(error).__name__}: {error}") from error
