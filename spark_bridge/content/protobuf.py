"""Decodes and encodes length-prefixed protobuf messages of one class."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from broadsheet.journals.content.protobuf import PROTOBUF_FIXED, ProtobufType
from broadsheet.journals.message.column_texts import Indices
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.row_errors import RowValueError, named_value_error
from broadsheet.spark_bridge.content.encoder import Encoded, Stretches, given_rows, in_order
from broadsheet.spark_bridge.content.frames import frames_of, framing_error, places_of, whole_frames
from broadsheet.spark_bridge.content.registry import Inference, SparkContent
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError, imported
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns, metadata_columns
from broadsheet.spark_bridge.journal_source.message_types import (
    TIMESTAMP,
    columns_of,
    is_map,
    load_message_class,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from broadsheet.spark_bridge.journal_sink.options import WriteOptions
    from broadsheet.spark_bridge.journal_source.message_table import UuidOf
    from broadsheet.spark_bridge.journal_source.options import ReadOptions
    from broadsheet.wire.journal_pb2 import LabelSet


class ProtobufDecoder:
    """Decodes one journal's messages, a row each; columns that no field fills are null."""

    whole_bytes = staticmethod(whole_frames)

    def __init__(
        self, columns: RowColumns, message_class: type[Message], *, uuid_field: str
    ) -> None:
        self._columns = columns
        self._class = message_class
        self._type = ProtobufType(message_class, uuid_field=uuid_field)
        wanted = set(columns.of_messages.names)
        self._fields = [f for f in message_class.DESCRIPTOR.fields if f.name in wanted]

    def decode(self, content: FetchedContent) -> pa.RecordBatch:
        """Return the messages of whole frames.

        Raises:
            FramingError: a message is not of the class, or its fields do not fit the columns.
        """
        frames = frames_of(content)
        begins, ends = places_of(content, frames)
        try:
            messages = [self._class.FromString(payload) for payload in frames.payloads]
            arrow = self._columns.arrow_schema()
            values = {
                f.name: pa.array(_field_values(f, messages), arrow.field(f.name).type)
                for f in self._fields
            }
            uuids = None
            if self._columns.wants_uuids:
                uuids = b"".join(map(self._type.uuid_of, frames.payloads))
            values |= metadata_columns(content.journal, begins=begins, ends=ends, uuids=uuids)
            return self._columns.batch(values, len(messages))
        except (DecodeError, ValueError, TypeError, pa.ArrowException) as error:
            raise framing_error(content, error) from error


def _field_values(field: Any, messages: Iterable[Message]) -> Sequence[Any]:
    if not field.is_repeated and field.has_presence:
        return [
            _value_of(field, getattr(m, field.name)) if m.HasField(field.name) else None
            for m in messages
        ]
    if not field.is_repeated:
        return [_value_of(field, getattr(m, field.name)) for m in messages]
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return [
            [(key, _value_of(value, item)) for key, item in getattr(m, field.name).items()]
            for m in messages
        ]
    return [[_value_of(field, item) for item in getattr(m, field.name)] for m in messages]


def _value_of(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        # A later version of the enum may have added the number.
        return known.name if known else str(value)
    if field.message_type is None:
        return value
    if field.message_type.full_name == TIMESTAMP:
        return value.ToDatetime(tzinfo=UTC)
    return {f.name: _field_values(f, (value,))[0] for f in field.message_type.fields}


class ProtobufFrames:
    """Encodes batches of rows as framed protobuf messages: each column is the field of its name.

    Rows are encoded one by one because no library makes protobuf from columns. A null leaves its field unset. A struct
    fills a message field, a list a repeated one, a map a map field, a timestamp a `google.protobuf.Timestamp`.
    """

    content_type = PROTOBUF_FIXED

    def __init__(self, schema: StructType, class_name: str | None, *, uuid_field: str) -> None:
        """Describe the messages.

        Args:
            schema: Of the rows.
            class_name: `module:Class` of the generated class; executors import it too.
            uuid_field: Its `bytes` field that takes the UUID.

        Raises:
            OptionError: there is no such class.
            PublishError: a column is no field of it.
        """
        if not class_name:
            expected = f"module:Class of protobuf messages, for journals of {PROTOBUF_FIXED}"
            raise OptionError("messageType", expected, got=class_name)
        self._class_name = class_name
        self._uuid_field = uuid_field
        message_class = imported(class_name, option="messageType")
        try:
            ProtobufType(message_class, uuid_field=uuid_field)
        except (TypeError, AttributeError) as error:
            raise OptionError(
                "messageType", f"a class that can hold the UUID ({error})", got=class_name
            ) from error
        fields = message_class.DESCRIPTOR.fields_by_name
        for column in schema.names:
            if column not in fields or column == uuid_field:
                raise PublishError(
                    f"column {column}: {class_name} has no such field to fill; there are "
                    f"{', '.join(sorted(set(fields) - {uuid_field}))}"
                )

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the frames of each stretch of rows, and how many they are."""
        rows = in_order(rows, order)
        message_class = imported(self._class_name, option="messageType")
        uuids = stamper.stamp_messages(rows.num_rows)
        frames = []
        with given_rows(order):
            columns = [
                (name, _named_values(name, column, message_class))
                for name, column in zip(rows.schema.names, rows.columns, strict=True)
            ]
            for index in range(rows.num_rows):
                values = {
                    name: column[index] for name, column in columns if column[index] is not None
                }
                values[self._uuid_field] = uuids[index].tobytes()
                frames.append(_framed(message_class, values, index))
        return Encoded(
            [b"".join(frames[begin:end]) for begin, end in stretches],
            [end - begin for begin, end in stretches],
        )

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a frame that holds only the UUID."""
        message_class = imported(self._class_name, option="messageType")
        message = message_class(**{self._uuid_field: uuid})
        return FixedFraming().frame(message.SerializeToString())


def _framed(message_class: Any, values: Mapping[str, Any], row: int) -> bytes:
    """Return the frame of a message.

    Raises:
        RowValueError: a value does not fit its field, or the message is longer than readers take.
    """
    try:
        content: bytes = message_class(**values).SerializeToString()
        return FixedFraming().frame(content)
    except (TypeError, ValueError) as error:
        for name, value in values.items():
            try:
                message_class(**{name: value})
            except (TypeError, ValueError) as refused:
                kind = message_class.__name__
                reason = f"{reprlib.repr(value)} does not fit the field of {kind}: {refused}"
                raise RowValueError(name, row, reason) from error
        sizes = {name: message_class(**{name: value}).ByteSize() for name, value in values.items()}
        raise RowValueError(max(sizes, key=sizes.__getitem__), row, str(error)) from error


def _named_values(name: str, column: Any, message_class: Any) -> list[Any]:
    """Return the values of a column for the constructor of messages.

    Raises:
        RowValueError: a text is not UTF-8, or the field would round a number.
    """
    field = message_class.DESCRIPTOR.fields_by_name[name]

    def written(some: Any) -> list[Any]:
        _check_width(some, field)
        return _python_values(some)

    try:
        return written(column)
    # Python's types raise errors of several classes for values that they do not have.
    except Exception as error:
        raise named_value_error(name, column, written, error) from error


def _check_width(column: Any, field: Any) -> None:
    """Refuse numbers that a field of floating-point numbers would round.

    Raises:
        ValueError: there is one.
    """
    width = {field.TYPE_FLOAT: pa.float32(), field.TYPE_DOUBLE: pa.float64()}.get(field.type)
    if width is None or field.is_repeated or not pa.types.is_primitive(column.type):
        return
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return
    values = column.drop_null().to_numpy(zero_copy_only=False)
    # Compared in their own type, because NumPy compares integers as floating-point numbers.
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = values.astype(width.to_pandas_dtype())
        back = rounded.astype(values.dtype)
    same = (back == values) | ((values != values) & (rounded != rounded))
    if not same.all():
        raise ValueError(f"{values[~same][0]} would be rounded by a field of type {width}; cast it")


def _python_values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if not pa.types.is_nested(column.type):
        return values
    return [_plain(value, column.type) for value in values]


def _plain(value: Any, kind: Any) -> Any:
    """Return a nested value for protobuf's constructors: maps as dicts, structs without nulls."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {
            field.name: _plain(value[field.name], field.type)
            for field in kind
            if value[field.name] is not None
        }
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return value


# ---- The content type ------------------------------------------------------------------------------


def _class_of(journal: str, options: ReadOptions) -> type[Message]:
    """Return the class of a journal's protobuf messages.

    Raises:
        OptionError: the option names none.
    """
    if options.message_type is None:
        expected = f"module:Class of the protobuf messages of {journal}"
        raise OptionError("messageType", expected, got=None)
    found = load_message_class(options.message_type)
    if not issubclass(found, Message):
        expected = f"a protobuf message class, for {journal} holds {PROTOBUF_FIXED}"
        raise OptionError("messageType", expected, got=options.message_type)
    return found


def _uuid_of(journal: str, options: ReadOptions) -> UuidOf:
    try:
        return ProtobufType(_class_of(journal, options), uuid_field=options.uuid_field).uuid_of
    except TypeError as error:
        expected = f"the name of a bytes field ({error})"
        raise OptionError("uuidField", expected, got=options.uuid_field) from error


def _decoder(journal: str, options: ReadOptions, columns: RowColumns) -> ProtobufDecoder:
    message_class = _class_of(journal, options)
    return ProtobufDecoder(columns, message_class, uuid_field=options.uuid_field)


def _encoder(schema: StructType, options: WriteOptions, labels: LabelSet) -> ProtobufFrames:
    del labels
    return ProtobufFrames(schema, options.message_type, uuid_field=options.uuid_field)


def _inference(journal: str, options: ReadOptions) -> Inference:
    message_class = _class_of(journal, options)
    return lambda samples, strict: columns_of(message_class, uuid_field=options.uuid_field)


CONTENT: Final = SparkContent(
    uuid_of=_uuid_of, decoder=_decoder, encoder=_encoder, inference=_inference
)
