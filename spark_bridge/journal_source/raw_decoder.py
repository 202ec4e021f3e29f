"""Reads messages without decoding: the payload of each frame in one binary column."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from broadsheet.journals.content.registry import framing_for
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns, metadata_columns
from broadsheet.spark_bridge.journal_source.message_table import UuidOf

VALUE: Final = "value"
RAW_SCHEMA: Final = StructType([StructField(VALUE, BinaryType())])


def check_raw(columns: RowColumns) -> None:
    """Refuse columns that only decoded messages have.

    Raises:
        OptionError: a column of messages is not `value BINARY`.
    """
    if columns.of_messages not in (RAW_SCHEMA, StructType([])):
        shown = columns.of_messages.simpleString()
        raise OptionError("schema", "value BINARY, for decode is false", got=shown)


class RawDecoder:
    """Returns undecoded payloads; parses them only for their UUIDs, if those are wanted."""

    def __init__(self, columns: RowColumns, *, content_type: str, uuid_of: UuidOf) -> None:
        """Select the columns.

        Requires:
            The columns passed `check_raw`.
        """
        self._columns = columns
        self._framing = framing_for(content_type)
        self._uuid_of = uuid_of

    def whole_bytes(self, data: bytes) -> int:
        """Return how many bytes of `data`, which begins with a frame, are whole frames."""
        ends = self._framing.unframer(journal="", offset=0).feed(data).ends
        return int(ends[-1]) if len(ends) else 0

    def decode(self, content: FetchedContent) -> pa.RecordBatch:
        """Return the payloads of whole frames."""
        frames = self._framing.unframer(journal="", offset=0).feed(content.data)
        begins, ends = content.offsets_of(frames.begins, frames.ends)
        uuids = None
        if self._columns.wants_uuids:
            uuids = b"".join(map(self._uuid_of, frames.payloads))
        values = metadata_columns(content.journal, begins=begins, ends=ends, uuids=uuids)
        values[VALUE] = pa.array(frames.payloads, pa.binary())
        return self._columns.batch(values, len(frames.payloads))
