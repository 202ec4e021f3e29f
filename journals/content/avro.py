"""Avro messages: a UUID and an Object Container File each, length-prefixed.

    66 33 93 36 | length | UUID, 16 bytes | Object Container File: schema, rows

A message holds one row or more, which are records of one schema. An acknowledgement is a UUID alone. The UUID precedes
the file so that sequencing parses no Avro. Readers need no schema, because each file holds the one that it was written
with; writers take it from the journal's label `broadsheet.dev/avro-schema`. Files are not compressed: brokers compress
fragments. The trace context is `traceparent` in the file's metadata.

Avro's decoder trusts its input: nested values overflow the stack of the process, and arrays of values without bytes ask
for any amount of memory. So a schema that allows either is refused, and each block is checked against bounds before any
of its values is decoded. Needs fastavro (`broadsheet[avro]`).

Source: Apache Avro 1.12 specification, "Object Container Files", "Names", "Logical Types".
"""

from __future__ import annotations

import io
import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import MessageRun, MessageType
from broadsheet.journals.content.row_encoding import pieces_encoder
from broadsheet.journals.content.traceparents import traceparents_in_heads
from broadsheet.journals.message.arrow_ipc import FREE_ROWS_MAX
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.uuid import NIL_UUID, UUID_BYTES
from broadsheet.runtime.errors import ExtraMissingError
from broadsheet.serving.tracing import TRACEPARENT
from broadsheet.wire.journal_pb2 import LabelSet
from broadsheet.wire.labels import values_of

if TYPE_CHECKING:
    import pyarrow as pa

AVRO: Final = "application/vnd.apache.avro"
"""The content type of Avro messages."""
SCHEMA_LABEL: Final = "broadsheet.dev/avro-schema"
"""Label of a journal: the schema with which messages are written, as `schema_label` makes it, or JSON with
percent-encoding."""
_LABEL_BYTES_MAX: Final = 1024
_SCHEMA_BYTES_MAX: Final = 1 << 20
"""Longest JSON of a schema, bytes."""
_DEPTH_MAX: Final = 32
"""Most levels of a schema."""
_SCHEMAS_KEPT: Final = 64
_FRAMING: Final = FixedFraming()
_MAGIC: Final = b"Obj\x01"
_LONG_BYTES_MAX: Final = 10
_PRIMITIVE_BYTES: Final[Mapping[str, int]] = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1,
}  # fmt: skip
"""Fewest bytes of a value of each primitive type."""


@dataclass(slots=True)
class AvroMessage:
    """Rows that were published together."""

    rows: list[dict[str, Any]]
    """None of them in an acknowledgement."""
    uuid: bytes = NIL_UUID
    traceparent: str = ""
    """The trace context, which becomes metadata of the file."""
    schema: Any = None
    """The schema that the rows were written with, as parsed JSON, if the message was read."""
    fits: bool = False
    """True if the rows come from columns of the schema's own types, so that no number is beyond them."""


class AvroType:
    """Avro messages, each an Object Container File of one row or more. Needs fastavro (the extra `avro`)."""

    content_type = AVRO

    def __init__(self, schema: Mapping[str, Any] | str | None = None) -> None:
        """Take the schema of messages that are written.

        Args:
            schema: A record, as JSON or parsed; None: messages can only be read.

        Raises:
            ExtraMissingError: fastavro is not installed.
            ValueError: the schema is no record, or allows values that readers refuse.
        """
        try:
            import fastavro  # noqa: F401 - asked for now, because a decoder that fails means damaged messages
        except ImportError as error:
            raise ExtraMissingError(
                "a type of Avro messages", "avro", "fastavro", module="fastavro"
            ) from error
        text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        # As text, because objects of this class travel to other processes.
        self._text = text
        if text is not None:
            _parsed(text.encode())

    def decode(self, payload: bytes) -> Any:
        """Return the rows of a payload."""
        uuid = self.uuid_of(payload)
        if len(payload) == UUID_BYTES:
            return AvroMessage([], uuid)
        import fastavro

        file = _read_file(payload)
        schema = _parsed(file.schema)
        rows: list[Any] = []
        for count, begin, end in file.blocks:
            block = io.BytesIO(payload[begin:end])
            rows += [fastavro.schemaless_reader(block, schema.values, None) for _ in range(count)]
            if block.tell() != end - begin:
                raise ValueError(
                    f"the rows of an Avro block end {end - begin - block.tell()} bytes early"
                )
        return AvroMessage(rows, uuid, file.traceparent, schema.json)

    def encode(self, message: Any) -> bytes:
        """Return the UUID followed by the file.

        Raises:
            RowValueError: a value does not fit the schema.
            ValueError: there is no schema.
        """
        if not message.rows:
            return bytes(message.uuid)
        import fastavro

        schema = self._schema()
        file = io.BytesIO()
        try:
            # The marker between blocks is the UUID, so that the same message has the same bytes.
            fastavro.writer(
                file,
                schema.written,
                message.rows,
                codec="null",
                metadata={TRACEPARENT: message.traceparent} if message.traceparent else None,
                # Without it the library writes integers that their type cannot hold; it takes ten times as long.
                validator=not message.fits,
                sync_marker=message.uuid,
            )
        # The library raises errors of several classes for values that it refuses.
        except Exception as error:
            raise _value_error(message.rows, schema, error) from error
        return bytes(message.uuid) + file.getvalue()

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the first 16 bytes."""
        if len(payload) < UUID_BYTES:
            raise ValueError(f"{len(payload)} bytes hold no UUID")
        return payload[:UUID_BYTES]

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Set the UUID."""
        message.uuid = uuid

    def set_traceparent(self, message: Any, traceparent: str) -> None:
        """Set the context."""
        message.traceparent = traceparent

    def new_acknowledgement(self, journal: str) -> Any:
        """Return a message without rows."""
        del journal
        return AvroMessage([])

    def schema_of(self, message: Any) -> pa.Schema | None:
        """See `RowType.schema_of`."""
        return None if message.schema is None else _arrow_schema(message.schema)

    def rows_of(self, message: Any) -> list[dict[str, Any]]:
        """See `RowType.rows_of`."""
        rows: list[dict[str, Any]] = message.rows
        return rows

    def columns(self) -> pa.Schema:
        """See `RowType.columns`."""
        return _arrow_schema(self._schema().json)

    def message_of(self, rows: pa.RecordBatch) -> Any:
        """See `RowType.message_of`."""
        wanted = {field.name: field.type for field in self.columns()}
        for name in rows.schema.names:
            # The library would leave the values out.
            if name not in wanted:
                raise ValueError(
                    f"column {name}: expected a field of the schema, {', '.join(wanted)}"
                )
        fits = all(wanted.get(field.name) == field.type for field in rows.schema)
        return AvroMessage(rows.to_pylist(maps_as_pydicts="strict"), fits=fits)

    def _schema(self) -> _Schema:
        if self._text is None:
            raise ValueError(
                f"no schema to write messages with: expected label {SCHEMA_LABEL} at the journal, or "
                "AvroType(schema) in an application"
            )
        return _parsed(self._text.encode())


def schema_label(schema: Mapping[str, Any] | str) -> str:
    """Return the value of `SCHEMA_LABEL` for a schema: its JSON, compressed by zlib, in base64 for URLs.

    Raises:
        ValueError: the schema is no record, or too large for a label.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    found = _parsed(text.encode()).json
    value = urlsafe_b64encode(zlib.compress(json.dumps(found, separators=(",", ":")).encode(), 9))
    if len(value) > _LABEL_BYTES_MAX:
        raise ValueError(
            f"the schema takes {len(value)} bytes of a label, which holds {_LABEL_BYTES_MAX}: leave out its docs, or "
            "give it to AvroType in the application"
        )
    return value.decode()


def _message_type(labels: LabelSet, message_class: type[Any] | None) -> MessageType:
    if message_class is not None:
        raise ValueError("expected no class of messages: Avro messages hold their schema")
    values = values_of(labels, SCHEMA_LABEL)
    if len(values) > 1:
        raise ValueError(f"label {SCHEMA_LABEL}: expected one schema, got {len(values)}")
    return AvroType(_schema_text(values[0]) if values else None)


def _schema_text(value: str) -> str:
    if value.startswith("%"):
        return unquote(value)
    try:
        inflated = zlib.decompressobj()
        text = inflated.decompress(urlsafe_b64decode(value), _SCHEMA_BYTES_MAX)
        if not inflated.eof:
            raise ValueError(f"it is cut off, or longer than {_SCHEMA_BYTES_MAX} bytes")
        return text.decode()
    except (ValueError, zlib.error) as error:
        raise ValueError(
            f"label {SCHEMA_LABEL}: expected a schema as schema_label() makes it, or JSON with "
            f"percent-encoding: {error}"
        ) from error


# ---- Files ------------------------------------------------------------------------------------------


class _File(NamedTuple):
    schema: bytes
    traceparent: str
    blocks: list[tuple[int, int, int]]
    """Rows, and bounds in the payload, of each block."""


def _read_file(payload: bytes) -> _File:
    """Return the structure of a file, without its values.

    Raises:
        ValueError: it is none, or a block declares more rows than its bytes can hold.
    """
    at = UUID_BYTES + len(_MAGIC)
    if payload[UUID_BYTES:at] != _MAGIC:
        raise ValueError("not an Avro Object Container File")
    metadata, at = _metadata(payload, at)
    if (codec := metadata.get(b"avro.codec", b"null")) != b"null":
        raise ValueError(f"expected an Avro file without compression, got codec {codec[:20]!r}")
    marker = payload[at : at + UUID_BYTES]
    at += UUID_BYTES
    blocks: list[tuple[int, int, int]] = []
    rows = 0
    while at < len(payload):
        count, at = _long(payload, at)
        size, at = _long(payload, at)
        end = at + size
        if count < 0 or size < 0 or payload[end : end + UUID_BYTES] != marker:
            raise ValueError("an Avro block does not end where it says")
        rows += count
        if rows > max(FREE_ROWS_MAX, len(payload)):
            raise ValueError(f"{rows} rows in an Avro file of {len(payload)} bytes")
        blocks.append((count, at, end))
        at = end + UUID_BYTES
    traceparent = metadata.get(TRACEPARENT.encode(), b"").decode("ascii", errors="replace")
    return _File(metadata.get(b"avro.schema", b""), traceparent, blocks)


def _metadata(payload: bytes, at: int) -> tuple[dict[bytes, bytes], int]:
    found: dict[bytes, bytes] = {}
    count, at = _long(payload, at)
    while count:
        if count < 0:  # A size in bytes follows, by which others may skip the block.
            count = -count
            _, at = _long(payload, at)
        for _ in range(count):
            key, at = _bytes(payload, at)
            found[key], at = _bytes(payload, at)
        count, at = _long(payload, at)
    return found, at


def _bytes(payload: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(payload, at)
    if not 0 <= size <= len(payload) - at:
        raise ValueError("the header of an Avro file points beyond its end")
    return payload[at : at + size], at + size


def _long(payload: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(payload[at : at + _LONG_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + index + 1
    raise ValueError("an Avro file ends within a number")


# ---- Schemas ----------------------------------------------------------------------------------------


class _Schema(NamedTuple):
    json: Any
    written: Any
    """Parsed, for writers."""
    values: Any
    """Parsed, for readers: texts that are UUIDs stay texts."""


@lru_cache(maxsize=_SCHEMAS_KEPT)
def _parsed(text: bytes) -> _Schema:
    """Return a schema.

    Raises:
        ValueError: it is no schema of a record, or allows values that must not be decoded.
    """
    import fastavro

    try:
        if len(text) > _SCHEMA_BYTES_MAX:
            raise ValueError(f"it is longer than {_SCHEMA_BYTES_MAX} bytes")
        found = json.loads(text)
        if not isinstance(found, dict) or found.get("type") != "record":
            raise ValueError("expected a record")
        _Bounds().check(found, "", 0)
        return _Schema(
            found, fastavro.parse_schema(found), fastavro.parse_schema(_without_uuids(found))
        )
    # The library raises errors of several classes.
    except Exception as error:
        raise ValueError(f"not an Avro schema of rows: {error}") from error


class _Bounds:
    """Refuses schemas whose values could overflow the stack, or ask for memory without bytes."""

    def __init__(self) -> None:
        self._bytes_by_name: dict[str, int | None] = {}
        """Fewest bytes of a value of each named type; None while the type is being read."""

    def check(self, schema: Any, namespace: str, depth: int) -> int:
        """Return the fewest bytes that a value takes.

        Raises:
            ValueError: a type is within itself, or an array has items without bytes.
        """
        if depth > _DEPTH_MAX:
            raise ValueError(f"expected at most {_DEPTH_MAX} levels")
        if isinstance(schema, list):
            return 1 + min((self.check(each, namespace, depth + 1) for each in schema), default=0)
        if isinstance(schema, str):
            return self._named(schema, namespace)
        if any(key.startswith("__") for key in schema):
            # The library would take such a schema for one that it has checked itself.
            raise ValueError("expected no names that begin with __")
        kind = schema["type"]
        if kind == "array":
            if not self.check(schema["items"], namespace, depth + 1):
                raise ValueError("expected items of arrays that take bytes, unlike null")
            return 1
        if kind == "map":
            self.check(schema["values"], namespace, depth + 1)
            return 1
        if kind in ("record", "error", "enum", "fixed"):
            return self._defined(schema, namespace, depth)
        return self.check(kind, namespace, depth + 1)

    def _named(self, name: str, namespace: str) -> int:
        if name in _PRIMITIVE_BYTES:
            return _PRIMITIVE_BYTES[name]
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._bytes_by_name.get(full, self._bytes_by_name.get(name, -1))
        if found is None:
            raise ValueError(f"{full} is within itself")
        if found < 0:
            raise ValueError(f"unknown type {full}")
        return found

    def _defined(self, schema: Any, namespace: str, depth: int) -> int:
        name = schema["name"]
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            namespace = schema.get("namespace", namespace)
            name = f"{namespace}.{name}" if namespace else name
        self._bytes_by_name[name] = None
        if schema["type"] == "enum":
            size = 1
        elif schema["type"] == "fixed":
            size = int(schema["size"])
        else:
            fields = schema["fields"]
            size = sum(self.check(field["type"], namespace, depth + 1) for field in fields)
        self._bytes_by_name[name] = size
        return size


def _without_uuids(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_uuids(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_uuids(value) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
        if (key, value) != ("logicalType", "uuid")
    }


def _value_error(
    rows: Sequence[dict[str, Any]], schema: _Schema, error: Exception
) -> RowValueError:
    """Return the error of the first row that the schema refuses, and of its column."""
    import fastavro

    for index, row in enumerate(rows):
        try:
            fastavro.validate(row, schema.written)
            fastavro.schemaless_writer(io.BytesIO(), schema.written, row)
        except Exception as refused:
            reason = " ".join(str(refused).split())
            return RowValueError(_refused_column(row, schema), index, reason)
    return RowValueError("of a row", 0, str(error))


def _refused_column(row: dict[str, Any], schema: _Schema) -> str:
    import fastavro

    # Types by name in place, so that each column can be asked alone.
    expanded: Any = fastavro.schema.expand_schema(schema.json)
    for field in expanded["fields"]:
        try:
            fastavro.validate(row.get(field["name"], field.get("default")), field["type"])
        except Exception:
            return str(field["name"])
    return "of a row"


def _arrow_schema(schema: Any) -> pa.Schema:
    """Return the columns of a record.

    Raises:
        ValueError: Arrow has no such column.
    """
    import pyarrow as pa

    return pa.schema(_Columns().fields(schema))


class _Columns:
    """Arrow types of Avro types, named ones remembered."""

    def __init__(self) -> None:
        self._type_by_name: dict[str, Any] = {}

    def fields(self, record: Any) -> list[pa.Field]:
        """Return the fields of a record."""
        import pyarrow as pa

        found = []
        for field in record["fields"]:
            kind, nullable = self._nullable(field["type"])
            found.append(pa.field(field["name"], kind, nullable))
        return found

    def _nullable(self, schema: Any) -> tuple[Any, bool]:
        if not isinstance(schema, list):
            return self._type(schema), schema == "null"
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ValueError(
                f"expected a union of null and one type, got {schema}: name the columns by a schema"
            )
        return self._type(others[0]), len(others) < len(schema)

    def _type(self, schema: Any) -> Any:
        import pyarrow as pa

        if isinstance(schema, list):
            return self._nullable(schema)[0]
        if isinstance(schema, str):
            primitive = _arrow_primitives().get(schema)
            return self._type_by_name[schema.rpartition(".")[2]] if primitive is None else primitive
        if (logical := _logical(schema)) is not None:
            return logical
        kind = schema["type"]
        if kind == "array":
            item, nullable = self._nullable(schema["items"])
            return pa.list_(pa.field("item", item, nullable))
        if kind == "map":
            value, nullable = self._nullable(schema["values"])
            return pa.map_(pa.string(), pa.field("value", value, nullable))
        if kind not in ("record", "error", "enum", "fixed"):
            return self._type(kind)
        if kind == "enum":
            found = pa.string()
        elif kind == "fixed":
            found = pa.binary()
        else:
            found = pa.struct(self.fields(schema))
        self._type_by_name[schema["name"].rpartition(".")[2]] = found
        return found


@lru_cache
def _arrow_primitives() -> Mapping[str, Any]:
    import pyarrow as pa

    return {
        "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(),
        "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
    }  # fmt: skip


def _logical(schema: Any) -> Any:
    """Return the type of values that have a meaning beside their encoding; None if they have none here."""
    import pyarrow as pa

    match schema.get("logicalType"):
        case "date":
            return pa.date32()
        case "timestamp-millis" | "timestamp-micros":
            return pa.timestamp("us", tz="UTC")
        case "local-timestamp-millis" | "local-timestamp-micros":
            return pa.timestamp("us")
        case "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
    return None


def _table(run: MessageRun, schema: pa.Schema | None) -> pa.Table:
    """Return the rows of messages, with the columns of the first one that has rows if there is no schema."""
    import pyarrow as pa

    messages = list(run.messages())
    if schema is None:
        written = next((each.schema for each in messages if each.schema is not None), None)
        schema = pa.schema([]) if written is None else _arrow_schema(written)
    return pa.Table.from_pylist([row for each in messages for row in each.rows], schema)


def _rows(message: AvroMessage) -> list[Any]:
    return list(message.rows)


def _made_of(message_type: MessageType, values: Sequence[Any]) -> AvroMessage:
    del message_type
    if not all(isinstance(value, dict) for value in values):
        raise ValueError("expected a JSON object, the fields of a record")
    return AvroMessage(list(values))


CONTENT: Final = ContentType(
    name=AVRO,
    framing=_FRAMING,
    message_type=_message_type,
    shown=_rows,
    made_of=_made_of,
    holds_rows=True,
    table=_table,
    rows_encoder=lambda message_type: pieces_encoder(_FRAMING, message_type),
    traceparents=traceparents_in_heads,
    labels=(SCHEMA_LABEL,),
)
