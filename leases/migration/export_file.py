"""Export files of lease records: JSON lines, for people, tools and imports.

    {"broadsheet_leases":1,"from":"dynamodb:orders?layout=kcl-java","count":2}
    {"record":{"key":"shardId-000000000000","checkpoint":["4711",0]},"attrs":{"zone":"eu"}}
    …

`record` is encoded by `broadsheet.leases.codec`. Attributes of other systems are separate because their names
may equal those of our fields. The count reveals a truncated file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from broadsheet.leases.codec import decode, encode
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.record import LeaseRecord
from broadsheet.runtime.errors import ValidationError

VERSION: Final = 1
_MARK: Final = "broadsheet_leases"


def export_lines(records: Iterable[LeaseRecord], *, origin: str) -> Iterator[str]:
    """Yield the lines of a file, each with its end.

    Args:
        records: In the order of the file.
        origin: Where they come from, without secrets.
    """
    listed = list(records)
    yield _line({_MARK: VERSION, "from": origin, "count": len(listed)})
    for record in listed:
        yield _line(export_fields(record))


def export_fields(record: LeaseRecord) -> dict[str, object]:
    """Return a record as an object of JSON: `record`, and `attrs` if it has any."""
    fields: dict[str, object] = {"record": json.loads(encode(replace(record, attrs={})))}
    if record.attrs:
        fields["attrs"] = {name: json.loads(text) for name, text in record.attrs.items()}
    return fields


def read_export(text: str, source: str) -> tuple[LeaseRecord, ...]:
    """Return the records of a file.

    Args:
        text: The file's.
        source: Its name, for messages.

    Raises:
        ValidationError: it is no such file, or not whole; the message names the line.
    """
    # Not `splitlines`, because keys may hold characters that it takes for line ends.
    lines = text.rstrip("\n").split("\n")
    header = _object(lines[0], source, 1)
    if _MARK in header and header[_MARK] != VERSION:
        raise ValidationError(
            f"{source}, line 1.{_MARK}",
            f"expected {VERSION}, got {header[_MARK]!r}: import it with the release that wrote it",
        )
    if header.get(_MARK) != VERSION:
        raise ValidationError(
            f"{source}, line 1",
            f'expected {{"{_MARK}":{VERSION},…}} of shardctl leases export, got {header!s:.80}',
        )
    records: dict[str, LeaseRecord] = {}
    for number, line in enumerate(lines[1:], start=2):
        place = f"{source}, line {number}"
        record = exported_record(_object(line, source, number), place)
        if record.key in records:
            raise ValidationError(place, f"lease {record.key} occurs twice")
        records[record.key] = record
    if header.get("count") != len(records):
        raise ValidationError(
            source, f"expected {header.get('count')} leases, got {len(records)}: export it again"
        )
    return tuple(records.values())


def exported_record(fields: Mapping[str, Any], place: str) -> LeaseRecord:
    """Return the record that `export_fields` made an object of.

    Args:
        fields: The object; `Any`, because it may come from anywhere.
        place: Where it is, for messages.

    Raises:
        ValidationError: it is no such object.
    """
    plain, attrs = fields.get("record"), fields.get("attrs", {})
    if not isinstance(plain, dict) or not isinstance(attrs, dict):
        raise ValidationError(place, "expected record, and perhaps attrs, as objects")
    try:
        record = decode(json.dumps(plain), key=str(plain.get("key", "")))
    except InvalidStateError as error:
        raise ValidationError(place, str(error)) from error
    return replace(record, attrs={name: _compact(value) for name, value in attrs.items()})


def _object(line: str, source: str, number: int) -> dict[str, Any]:  # Any: whatever JSON holds.
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"{source}, line {number}", f"is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValidationError(f"{source}, line {number}", f"expected an object, got {line:.80}")
    return found


def _line(fields: object) -> str:
    return f"{_compact(fields)}\n"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
