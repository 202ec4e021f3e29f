"""Decodes and encodes CSV records: the UUID, then a field for each column in order."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
from pyspark.sql.types import ArrayType, MapType, StructType

from broadsheet.journals.content.csv import CSV, CsvFraming, CsvType
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.column_texts import (
    Indices,
    base64_text,
    check_utf8,
    date_text,
    fixed_width_texts,
    timestamp_text,
)
from broadsheet.journals.message.framing import FRAME_BYTES_MAX, Frames, check_frame_bytes
from broadsheet.journals.message.row_errors import RowValueError, named_value_error
from broadsheet.journals.message.uuid import format_uuid, uuid_texts
from broadsheet.spark_bridge.content.encoder import (
    Encoded,
    Stretches,
    check_columns,
    given_rows,
    in_order,
)
from broadsheet.spark_bridge.content.registry import Inference, SparkContent
from broadsheet.spark_bridge.content.spark_texts import (
    local_timestamp_of,
    timestamp_of,
    timestamps_of,
)
from broadsheet.spark_bridge.content.time_zones import session_zone
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_sink.stamps import Stamper
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent
from broadsheet.spark_bridge.journal_source.columns import RowColumns, metadata_columns

if TYPE_CHECKING:
    from broadsheet.spark_bridge.journal_sink.options import WriteOptions
    from broadsheet.spark_bridge.journal_source.message_table import UuidOf
    from broadsheet.spark_bridge.journal_source.options import ReadOptions
    from broadsheet.wire.journal_pb2 import LabelSet

_UUID_COLUMN = "\0uuid"
"""A name that no user's column has."""


class CsvDecoder:
    """Decodes one journal's records into Arrow batches."""

    def __init__(self, columns: RowColumns, *, zone: tzinfo = UTC) -> None:
        """Select the columns.

        Args:
            columns: Of the batches.
            zone: Of timestamps that name none.

        Raises:
            OptionError: CSV cannot represent a column.
        """
        for field in columns.of_messages:
            if isinstance(field.dataType, (ArrayType, MapType, StructType)):
                kind = f"{field.name} {field.dataType.simpleString()}"
                raise OptionError("schema", "columns that are no lists, maps or structs", got=kind)
        self._columns = columns
        self._zone = zone
        names = set(columns.of_messages.names)
        self._fields = [field for field in columns.arrow_schema() if field.name in names]

    @staticmethod
    def whole_bytes(data: bytes) -> int:
        """Return how many bytes are whole records."""
        ends = _records(data).ends
        return int(ends[-1]) if len(ends) else 0

    def decode(self, content: FetchedContent) -> pa.RecordBatch:
        """Return the messages of whole records.

        Raises:
            FramingError: a record's fields are not as many as the columns, or a value does not fit its column.
        """
        records = _records(content.data)
        try:
            values = self._read(content.data, len(records.begins))
            uuids = None
            if self._columns.wants_uuids:
                uuids = b"".join(map(CsvType(columns=0).uuid_of, records.payloads))
            begins, ends = content.offsets_of(records.begins, records.ends)
            values |= metadata_columns(content.journal, begins=begins, ends=ends, uuids=uuids)
            return self._columns.batch(values, len(records.begins))
        except (ValueError, pa.ArrowException) as error:
            detail = f"of a message there or after: {error}"
            first = int(content.piece_offsets[0])
            raise FramingError(content.journal, offset=first, detail=detail) from error

    def _read(self, data: bytes, records: int) -> dict[str, Any]:
        kinds = {f.name: _read_as(f.type) for f in self._fields}
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(
                column_names=[_UUID_COLUMN, *kinds], use_threads=False, block_size=len(data) + 1
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types={_UUID_COLUMN: pa.string(), **kinds},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        # Arrow skips empty lines, which would shift all rows after it.
        if table.num_rows != records:
            raise ValueError(f"{table.num_rows} rows in {records} records")
        return {
            f.name: _column(table.column(f.name).combine_chunks(), f.type, self._zone)
            for f in self._fields
        }


def _records(data: bytes) -> Frames:
    return CsvFraming().unframer(journal="", offset=0).feed(data)


def _read_as(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_binary(kind) or pa.types.is_timestamp(kind) else kind


def _column(values: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    if pa.types.is_timestamp(kind):
        return _timestamps(values, kind, zone)
    if not pa.types.is_binary(kind):
        return values
    texts = values.to_pylist()
    return pa.array([None if t is None else b64decode(t, validate=True) for t in texts], kind)


def _timestamps(texts: Any, kind: pa.DataType, zone: tzinfo) -> Any:
    try:
        return timestamps_of(texts, kind, zone)
    except pa.ArrowInvalid:
        pass  # read one by one, which finds the invalid text
    found = (
        None if t is None else local_timestamp_of(t) if kind.tz is None else timestamp_of(t, zone)
        for t in texts.to_pylist()
    )
    return pa.array(list(found), kind)


_CSV_LINES_UUID_COLUMN = "uuid"


class CsvLines:
    """Encodes batches of rows as CSV records, `uuid,value,...` and a line end.

    Strings are quoted because an empty string must differ from null, which is an empty field. A string may hold line
    ends.

    Source: gazette/core message/csv_framing.go (CSVRecord: the UUID is the first field; all records have as many).
    """

    content_type = CSV

    def __init__(self, schema: StructType) -> None:
        """Describe the rows.

        Raises:
            PublishError: a column is a list, a map or a struct, or of a type that has no text.
        """
        check_columns(schema, form="CSV", nested=False)
        self._columns = len(schema.fields)

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the lines of each stretch of rows, and how many they are."""
        rows = in_order(rows, order)
        uuids = stamper.stamp_messages(rows.num_rows)
        with given_rows(order):
            columns = list(map(_named_writable, rows.schema.names, rows.columns))
        lines = pa.RecordBatch.from_arrays(
            [fixed_width_texts(uuid_texts(uuids)), *columns],
            [_CSV_LINES_UUID_COLUMN, *rows.schema.names],
        )
        contents = []
        for begin, end in stretches:
            with given_rows(order, begin):
                contents.append(_written(lines.slice(begin, end - begin)))
        return Encoded(contents, [end - begin for begin, end in stretches])

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a line of the UUID and as many empty fields as there are columns."""
        return format_uuid(uuid).encode() + b"," * self._columns + b"\n"


def _named_writable(name: str, column: Any) -> Any:
    try:
        return _writable(column)
    # Arrow raises errors of several classes for values that it refuses.
    except Exception as error:
        raise named_value_error(name, column, _writable, error) from error


def _writable(column: Any) -> Any:
    if pa.types.is_string(column.type):
        check_utf8(column)
    if pa.types.is_date(column.type):
        return date_text(column)
    if pa.types.is_timestamp(column.type):
        return timestamp_text(column)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return base64_text(column)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    return column


def _written(lines: pa.RecordBatch) -> bytes:
    if not lines.num_rows:
        return b""
    content = pa.BufferOutputStream()
    pa_csv.write_csv(lines, content, pa_csv.WriteOptions(include_header=False))
    written = bytes(content.getvalue())
    if len(written) > FRAME_BYTES_MAX:
        _check_lengths(lines, written)
    return written


def _check_lengths(lines: pa.RecordBatch, written: bytes) -> None:
    """Refuse a record that is too long.

    Raises:
        RowValueError: there is one; the error names its longest text.
    """
    if lines.num_rows > 1:
        for row in range(lines.num_rows):
            with given_rows(None, row):
                _written(lines.slice(row, 1))
        return
    try:
        check_frame_bytes(len(written) - 1)
    except ValueError as error:
        named = zip(lines.schema.names[1:], lines.columns[1:], strict=True)
        _, name = max((column.nbytes, name) for name, column in named)
        raise RowValueError(name, 0, str(error)) from error


# ---- The content type ------------------------------------------------------------------------------


def _uuid_of(journal: str, options: ReadOptions) -> UuidOf:
    del journal, options
    # The number of columns matters only for acknowledgements, which a reader does not write.
    return CsvType(columns=0).uuid_of


def _decoder(journal: str, options: ReadOptions, columns: RowColumns) -> CsvDecoder:
    del journal
    return CsvDecoder(columns, zone=session_zone(options.time_zone))


def _encoder(schema: StructType, options: WriteOptions, labels: LabelSet) -> CsvLines:
    del options, labels
    return CsvLines(schema)


def _inference(journal: str, options: ReadOptions) -> Inference:
    del journal, options
    raise OptionError("schema", "columns as DDL: CSV messages do not name theirs", got=None)


CONTENT: Final = SparkContent(
    uuid_of=_uuid_of, decoder=_decoder, encoder=_encoder, inference=_inference
)
