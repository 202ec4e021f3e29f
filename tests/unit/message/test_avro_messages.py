"""Avro messages: rows in an Object Container File each, and files that must not be decoded."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
import random
import struct
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import fastavro
import pyarrow as pa
import pytest

from broadsheet.journals.content.avro import AVRO, SCHEMA_LABEL, AvroMessage, AvroType, schema_label
from broadsheet.journals.content.registry import content_of, content_types
from broadsheet.journals.errors import ContentTypeError
from broadsheet.journals.message.batch import MessageBatch, batch_of
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.trace_contexts import traceparents_in
from broadsheet.journals.message.uuid import Flags, build_uuid
from broadsheet.wire.labels import label_set

UUID = build_uuid(7, 1 << 4, Flags.OUTSIDE_TXN)
FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "namespace": "flights",
    "fields": [
        {"name": "tail", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "fare", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "from", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]}},
        {"name": "to", "type": ["null", "Place"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["LATE", "GONE"]}},
    ],
}  # fmt: skip
ROW: dict[str, Any] = {
    "tail": "N1", "delay": 3, "at": dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC), "fare": Decimal("9.99"),
    "id": "12345678-1234-5678-1234-567812345678", "stops": ["EWR"], "counts": {"bags": 2}, "from": {"x": 1.5},
    "to": None, "state": "LATE",
}  # fmt: skip
OTHER = {
    **ROW,
    "tail": "",
    "delay": None,
    "fare": None,
    "stops": [],
    "counts": {},
    "to": {"x": -1.0},
}


def _payload(*rows: dict[str, Any], schema: Any = FLIGHT, traceparent: str = "") -> bytes:
    return AvroType(schema).encode(AvroMessage(list(rows), UUID, traceparent))


def _batch(*payloads: bytes) -> MessageBatch:
    framing = content_of(AVRO).framing
    unframer = framing.unframer(journal="a/journal", offset=0)
    frames = unframer.feed(b"".join(map(framing.frame, payloads)))
    batch, error = batch_of("a/journal", frames, AvroType())
    assert error is None
    return batch


def test_avro_rows_come_back_and_any_tool_reads_the_file() -> None:
    """Every kind of value that the schema has, nulls and none of them; a reader needs no schema of its own."""
    payload = _payload(ROW, OTHER)

    message = AvroType().decode(payload)

    assert message.rows == [ROW, OTHER]
    assert (message.uuid, AvroType().uuid_of(payload)) == (UUID, UUID)
    by_the_library = list(fastavro.reader(io.BytesIO(payload[16:])))
    assert [str(row["id"]) for row in by_the_library] == [ROW["id"]] * 2  # type: ignore[index,call-overload]


def test_avro_type_travels_to_other_processes() -> None:
    """Spark pickles it to tasks."""
    message_type = pickle.loads(pickle.dumps(AvroType(FLIGHT)))  # noqa: S301 - our own bytes

    assert message_type.decode(message_type.encode(AvroMessage([ROW], UUID))).rows == [ROW]


def test_avro_acknowledgement_is_a_uuid_alone() -> None:
    """It needs no schema, so that any process can roll back what a dead one left."""
    message_type = AvroType()
    message = message_type.new_acknowledgement("a/journal")
    message_type.set_uuid(message, UUID)

    assert message_type.encode(message) == UUID
    assert message_type.decode(UUID).rows == []


@pytest.mark.parametrize(
    ("change", "column", "reason"),
    [
        ({"delay": "late"}, "delay", "late"),
        ({"delay": 1 << 40}, "delay", "1099511627776"),
        ({"tail": None}, "tail", "None"),
        ({"from": {"x": "far"}}, "from", "far"),
    ],
)
def test_avro_value_that_does_not_fit_is_named(
    change: dict[str, Any], column: str, reason: str
) -> None:
    """A number of 41 bits would be written without a word, and no reader of an int could read it."""
    with pytest.raises(RowValueError, match=reason) as raised:
        _payload(ROW, {**ROW, **change})

    assert (raised.value.column, raised.value.row) == (column, 1)


def test_avro_without_a_schema_cannot_be_written() -> None:
    """The error says where the schema comes from."""
    with pytest.raises(ValueError, match=f"expected label {SCHEMA_LABEL} at the journal"):
        AvroType().encode(AvroMessage([ROW], UUID))


@pytest.mark.parametrize("label", [schema_label(FLIGHT), quote(json.dumps(FLIGHT))])
def test_avro_schema_of_the_journals_label(label: str) -> None:
    """In both forms: compressed, because a label holds 1,024 bytes, and as text that an operator can read."""
    message_type = content_of(AVRO).message_type(label_set((SCHEMA_LABEL, label)), None)

    assert message_type.decode(message_type.encode(AvroMessage([ROW], UUID))).rows == [ROW]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("nonsense", "expected a schema as schema_label"),
        (schema_label(FLIGHT)[:-8], "expected a schema as schema_label"),
        (quote('{"type": "string"}'), "expected a record"),
        (quote("{"), "not an Avro schema"),
    ],
)
def test_avro_label_that_is_no_schema_is_refused(label: str, message: str) -> None:
    """On the driver or at start, before any row."""
    with pytest.raises(ValueError, match=message):
        content_of(AVRO).message_type(label_set((SCHEMA_LABEL, label)), None)


def test_avro_batch_as_a_table_has_the_rows_of_all_messages() -> None:
    """With the types of the schema, acknowledgements left out; or with the columns that are asked for."""
    batch = _batch(_payload(ROW), UUID, _payload(OTHER))

    table = batch.to_arrow()

    assert table.column("delay").to_pylist() == [3, None]
    assert table.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert table.schema.field("fare").type == pa.decimal128(9, 2)
    assert batch.to_arrow(pa.schema([("delay", pa.int64())])).to_pydict() == {"delay": [3, None]}


def test_avro_trace_context_is_in_the_files_metadata() -> None:
    """As Arrow messages have it in their schema's."""
    context = f"00-{'1' * 32}-{'2' * 16}-01"

    assert list(traceparents_in(_batch(_payload(ROW, traceparent=context)))) == [context]
    assert AvroType().decode(_payload(ROW, traceparent=context)).traceparent == context


def _file(schema: Any, block: bytes, *, count: int = 1, codec: bytes = b"null") -> bytes:
    """Return a payload as a hostile writer would make it."""

    def text(content: bytes) -> bytes:
        return _long(len(content)) + content

    header = _long(2) + text(b"avro.codec") + text(codec) + text(b"avro.schema")
    marker = b"m" * 16
    head = b"Obj\x01" + header + text(json.dumps(schema).encode()) + _long(0) + marker
    return UUID + head + _long(count) + text(block) + marker


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def _record(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}], **more}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (_file(_record(["null", "R"]), b"\x02" * 5_000_000 + b"\x00"), "R is within itself"),
        (_file(_record({"type": "array", "items": "null"}), _long(1 << 40)), "items of arrays"),
        (_file(_record("null"), b"", count=1 << 40), "rows in an Avro file"),
        (_file(_record("long"), b"x" * 100, codec=b"deflate"), "without compression"),
        (_file(_record("null", __fastavro_parsed__=True), b""), "begin with __"),
        (_file(_record("long"), b"\x02\x02"), "1 bytes early"),
        (_file(_record("long"), b"\x02")[:-1], "does not end where it says"),
        (_file("long", b"\x02"), "expected a record"),
        (UUID + b"PAR1", "not an Avro Object Container File"),
        (UUID[:8], "hold no UUID"),
    ],
)
def test_avro_file_that_must_not_be_decoded_is_refused(payload: bytes, message: str) -> None:
    """Avro's decoder would crash the process, or fill its memory, with the first three of them."""
    with pytest.raises(ValueError, match=message):
        AvroType().decode(payload)


def test_avro_damaged_files_are_errors_and_never_crashes() -> None:
    """Bytes changed at random: rows or an error, in this process."""
    payload, rng, message_type = _payload(ROW, OTHER), random.Random(38), AvroType()
    for _ in range(2_000):
        damaged = bytearray(payload)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(16, len(damaged))] = rng.randrange(256)
        try:
            message_type.decode(bytes(damaged))
        except (ValueError, LookupError, EOFError, OverflowError, ArithmeticError, struct.error):
            continue


def test_content_type_that_is_not_registered_is_named_with_those_that_are() -> None:
    """A reader that meets an unknown label learns which there are."""
    assert AVRO in content_types()
    with pytest.raises(ContentTypeError, match=r"text/csv, .*vnd\.apache\.avro"):
        content_of("text/plain", journal="a/journal")
