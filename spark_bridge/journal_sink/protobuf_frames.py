"""Rows as length-prefixed protobuf messages of one class, each column the field of its name.

Row by row: no library makes protobuf of columns. Null leaves a field unset. A struct fills a message field, a list a
repeated one, a map a map field, a timestamp a `google.protobuf.Timestamp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from consumer.message.framing import PROTOBUF_FIXED, FixedFraming
from consumer.message.types import ProtobufType
from spark_bridge.errors import PublishError
from spark_bridge.format_options import OptionError
from spark_bridge.journal_sink.encoder import Encoded, Stretches, in_order
from spark_bridge.journal_sink.imports import imported
from spark_bridge.journal_sink.stamps import Stamper
from spark_bridge.journal_sink.texts import Indices

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ProtobufFrames:
    """Encodes batches of rows."""

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
        frame = FixedFraming().frame
        columns = [
            (name, _python_values(column))
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        uuids = stamper.stamp_messages(rows.num_rows)
        frames = []
        for index in range(rows.num_rows):
            values = {name: column[index] for name, column in columns if column[index] is not None}
            values[self._uuid_field] = uuids[index].tobytes()
            frames.append(frame(_serialized(message_class, values)))
        return Encoded(
            [b"".join(frames[begin:end]) for begin, end in stretches],
            [end - begin for begin, end in stretches],
        )

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a frame with nothing but the UUID."""
        message_class = imported(self._class_name, option="messageType")
        message = message_class(**{self._uuid_field: uuid})
        return FixedFraming().frame(message.SerializeToString())


def _serialized(message_class: Any, values: Mapping[str, Any]) -> bytes:
    try:
        content: bytes = message_class(**values).SerializeToString()
    except (TypeError, ValueError) as error:
        raise PublishError(_culprit(message_class, values) or str(error)) from error
    return content


def _culprit(message_class: Any, values: Mapping[str, Any]) -> str | None:
    """Name the column whose value its field refuses."""
    for name, value in values.items():
        try:
            message_class(**{name: value})
        except (TypeError, ValueError) as error:
            return f"column {name}: {value!r} does not fit the field of {message_class.__name__}: {error}"
    return None


def _python_values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if not pa.types.is_nested(column.type):
        return values
    return [_plain(value, column.type) for value in values]


def _plain(value: Any, kind: Any) -> Any:
    """Return a nested value as protobuf's constructors want it: maps as dicts, and no nulls within structs."""
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
