"""How rows become messages, by the content type of the journals that take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from consumer.message.framing import ARROW_STREAM, CSV, NDJSON, PROTOBUF_FIXED
from spark_bridge.format_options import OptionError
from spark_bridge.journal_sink.stamps import Stamper

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_bridge.journal_sink.options import WriteOptions
    from spark_bridge.journal_sink.texts import Indices

CONTENT_TYPES = (NDJSON, CSV, PROTOBUF_FIXED, ARROW_STREAM)


Stretches: TypeAlias = Sequence[tuple[int, int]]
"""Ranges [begin, end) of rows, none of them empty, each of which goes to one journal; shape (S,)."""


class Encoded(NamedTuple):
    """Messages ready to be appended."""

    contents: Sequence[bytes | memoryview]
    """Whole frames of each stretch of rows; shape (S,)."""
    messages: list[int]
    """How many; shape (S,)."""


class Encoder(Protocol):
    """Makes messages of rows. It is pickled on the driver and used in tasks."""

    content_type: str

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the messages of each stretch of rows.

        Args:
            rows: N of them.
            stretches: Which are written where.
            stamper: Mints their UUIDs.
            order: The rows by their places, shape (N,), to be written, and counted by `stretches`, in this order; None:
                as they are.

        Raises:
            PublishError: a value cannot be encoded; the message names its column.
        """
        ...

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a framed acknowledgement, given its 16-byte UUID."""
        ...


def in_order(rows: pa.RecordBatch, order: Indices | None) -> pa.RecordBatch:
    """Return rows in the order in which they are to be written, for encoders that write one after the other."""
    if order is None:
        return rows
    import pyarrow as pa

    # Given the NumPy array itself, Arrow takes twice as long.
    return rows.take(pa.array(order))


def encoder_for(content_type: str, schema: StructType, options: WriteOptions) -> Encoder:
    """Return what encodes rows for journals of a content type.

    Raises:
        OptionError: there is no such encoding.
        PublishError: the rows do not fit it.
    """
    if content_type == NDJSON:
        from spark_bridge.journal_sink.json_lines import JsonLines

        return JsonLines(schema, ignore_null_fields=options.ignore_null_fields)
    if content_type == CSV:
        from spark_bridge.journal_sink.csv_lines import CsvLines

        return CsvLines(schema)
    if content_type == PROTOBUF_FIXED:
        from spark_bridge.journal_sink.protobuf_frames import ProtobufFrames

        return ProtobufFrames(schema, options.message_type, uuid_field=options.uuid_field)
    if content_type == ARROW_STREAM:
        from spark_bridge.journal_sink.arrow_frames import ArrowFrames

        return ArrowFrames()
    raise OptionError(
        "selector",
        f"journals labelled content-type with one of {', '.join(CONTENT_TYPES)}",
        got=f"{options.selector}, of content type {content_type or 'none'}",
    )
