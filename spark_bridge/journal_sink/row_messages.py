"""Rows that an application's function turns into JSON messages, one by one, in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from consumer.message.framing import NDJSON, LineFraming
from consumer.message.types import JsonType
from consumer.message.uuid import format_uuid
from spark_bridge.errors import PublishError
from spark_bridge.journal_sink.encoder import Encoded, Stretches, in_order
from spark_bridge.journal_sink.stamps import Stamper
from spark_bridge.journal_sink.texts import Indices

Row: TypeAlias = dict[str, Any]
"""One row as Python values by column name; Spark decides their types."""
RowFunction: TypeAlias = Callable[[Row], Row]


class RowMessages:
    """Encodes batches of rows."""

    content_type = NDJSON

    def __init__(self, message_of: RowFunction) -> None:
        """Describe the messages.

        Args:
            message_of: Makes a row the message; pickled to executors.
        """
        self._message_of = message_of

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the messages of each stretch of rows, and how many they are."""
        rows = in_order(rows, order)
        uuids = stamper.stamp_messages(rows.num_rows)
        lines = [
            self._line(row, uuid.tobytes())
            for row, uuid in zip(rows.to_pylist(), uuids, strict=True)
        ]
        return Encoded(
            [b"".join(lines[begin:end]) for begin, end in stretches],
            [end - begin for begin, end in stretches],
        )

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return the line that acknowledges, given its UUID."""
        return LineFraming().frame(JsonType().encode({"_meta": {"uuid": format_uuid(uuid)}}))

    def _line(self, row: Row, uuid: bytes) -> bytes:
        message = self._message_of(row)
        json_type = JsonType()
        try:
            json_type.set_uuid(message, uuid)
            return LineFraming().frame(json_type.encode(message))
        except (TypeError, ValueError, AttributeError) as error:
            raise PublishError(f"message_of: {message!r} is no JSON message: {error}") from error
