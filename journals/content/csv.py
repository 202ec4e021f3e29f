r"""CSV records, whose first field is the UUID; they name no columns.

    payload \n, in which a newline between quotes ends nothing

Source: gazette/core message/csv_framing.go (CSVRecord: the UUID is the first field; all records have as many).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import numpy as np

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import MessageRun, MessageType
from broadsheet.journals.message.framing import (
    FRAME_BYTES_MAX,
    Frames,
    LineUnframer,
    Payloads,
    SkippedRanges,
    Unframer,
    check_frame_bytes,
    frame_too_long,
)
from broadsheet.journals.message.json_tables import check_text
from broadsheet.journals.message.uuid import NIL_UUID, format_uuid
from broadsheet.wire.journal_pb2 import LabelSet

if TYPE_CHECKING:
    import pyarrow as pa

CSV: Final = "text/csv"
"""The content type of CSV records."""
CSV_UUID_COLUMN: Final = "uuid"
_CSV_UUID_CHARACTERS = 36
_FIELD: Final = re.compile(r'"((?:[^"]|"")*)"(?=,|\r?\n?\Z)|([^",\r\n]*)(?=,|\r?\n?\Z)')
"""A field between quotes, or without any, and what follows it."""
_LINE_END = "\r\n"
_QUOTE: Final = ord('"')
_UUID_FIELD: Final = re.compile(
    rb'"?[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"?(,|$)'
)
"""The beginning of a publisher's CSV record; a line within a quoted string is unlikely to begin so."""


class CsvType:
    """CSV records as lists of strings; the first field is the UUID's text, and all records have as many fields."""

    content_type = CSV

    def __init__(self, *, columns: int) -> None:
        """Describe the records.

        Args:
            columns: Number of fields beside the UUID; each record and each acknowledgement has as many.
        """
        self._columns = columns

    def decode(self, payload: bytes) -> Any:
        """Return the fields of a payload."""
        try:
            text = payload.decode("utf-8")
            # The module bounds fields, by a setting of the whole process that is the application's.
            if len(text) > csv.field_size_limit():
                return _long_record(text)
            records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"not a CSV record: {error}") from error
        if len(records) != 1:
            raise ValueError(f"expected one CSV record, got {len(records)}")
        return records[0]

    def encode(self, message: Any) -> bytes:
        """Return a record without its line end.

        Raises:
            ValueError: it has not as many fields as the others of its journal, which have one table.
        """
        if len(message) != 1 + self._columns:
            raise ValueError(
                f"expected the UUID and {self._columns} fields, got {len(message)} in all"
            )
        text = io.StringIO(newline="")
        # With "\r\n" the writer quotes fields that hold either character; other line ends it would not quote.
        csv.writer(text, lineterminator=_LINE_END).writerow(message)
        return text.getvalue().removesuffix(_LINE_END).encode("utf-8")

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the UUID of the first field; zero bytes if that is empty."""
        text = payload.partition(b",")[0].strip(b'"').decode("ascii", errors="replace")
        if not text:
            return NIL_UUID
        try:
            uuid = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            uuid = b""
        if len(text) != _CSV_UUID_CHARACTERS or len(uuid) != len(NIL_UUID):
            raise ValueError(f"the first field {text!r} is not a UUID")
        return uuid

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Replace the first field."""
        message[0] = format_uuid(uuid)

    def new_acknowledgement(self, journal: str) -> Any:
        """Return empty fields."""
        del journal
        return [""] * (1 + self._columns)


def _long_record(text: str) -> list[str]:
    """Return the fields of a record of any length.

    Raises:
        ValueError: it is not one.
    """
    fields: list[str] = []
    place = 0
    while True:
        found = _FIELD.match(text, place)
        if found is None:
            raise ValueError(f"not a CSV record: no field begins at character {place}")
        quoted, plain = found.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        if not text.startswith(",", found.end()):
            return fields
        place = found.end() + 1


# ---- Framing ----


class CsvFraming:
    """Framing as CSV records; strings between quotes may hold newlines."""

    def frame(self, payload: bytes) -> bytes:
        """Return the record and a newline."""
        if payload.count(b'"') % 2:
            raise ValueError("a quote of the CSV record is not closed")
        check_frame_bytes(len(payload))
        return payload + b"\n"

    def unframer(self, *, journal: str, offset: int, read_around: bool = False) -> Unframer:
        """Return an unframer of records from `offset` on."""
        return _CsvUnframer(journal, offset, read_around=read_around)


class _Found(NamedTuple):
    begins: list[int]
    ends: list[int]
    payloads: list[bytes]


class _CsvUnframer:
    def __init__(self, journal: str, offset: int, *, read_around: bool) -> None:
        self._journal = journal
        self._lines = LineUnframer(journal, offset, read_around=read_around)
        self._read_around = read_around
        self._skipped = SkippedRanges()
        self._begin = offset
        """Offset at which the open record begins, if there is one."""
        self._open: list[bytes] = []
        """Lines of a record whose quote is not closed."""
        self._open_bytes = 0

    @property
    def pending_bytes(self) -> int:
        return self._open_bytes + self._lines.pending_bytes

    def feed(self, content: bytes) -> Frames:
        lines = self._lines.feed(content)
        if not len(lines.begins):
            return lines
        if not self._open:
            records = self._records(lines)
            if records is not None:
                return records
        found = _Found([], [], [])
        error = lines.error
        for begin, end, line in zip(
            lines.begins.tolist(), lines.ends.tolist(), lines.payloads, strict=True
        ):
            if self._open and self._read_around and self._is_damaged(begin, line):
                self._skip_open()
            size = self._open_bytes + len(line)
            if self._open and size > FRAME_BYTES_MAX:
                error = frame_too_long(self._journal, self._begin, size)
                break
            self._take(found, begin, end, line)
            if self._open_bytes > FRAME_BYTES_MAX and not self._read_around:
                error = frame_too_long(self._journal, self._begin, self._open_bytes)
                break
        ranges, contents = self._skipped.take()
        ordered = sorted(
            zip((*ranges, *lines.skipped), (*contents, *lines.skipped_content), strict=False)
        )
        return Frames(
            np.array(found.begins, dtype=np.int64),
            np.array(found.ends, dtype=np.int64),
            Payloads.of(found.payloads),
            tuple(place for place, _ in ordered),
            tuple(content for _, content in ordered),
            error,
        )

    def _records(self, lines: Frames) -> Frames | None:
        """Return lines as records, found all at once; None if that needs a look at each line.

        A line ends its record if the quotes up to its end are even in number.
        """
        payloads = lines.payloads
        assert isinstance(payloads, Payloads), "lines are in one buffer"
        first, last = int(payloads.begins[0]), int(payloads.ends[-1])
        if payloads.buffer.find(b'"', first, last) < 0:
            return lines  # The usual case: without quotes every line is a record.
        # What lies within an open record decides whether it is damaged.
        if self._read_around or last - first >= FRAME_BYTES_MAX:
            return None
        codes = np.frombuffer(payloads.buffer, dtype=np.uint8)[first:last]
        quotes = np.flatnonzero(codes == _QUOTE) + first
        closing = np.flatnonzero(quotes.searchsorted(payloads.ends) % 2 == 0)
        whole = int(closing[-1]) + 1 if len(closing) else 0
        for index in range(whole, len(payloads)):
            self._take(
                _Found([], [], []),
                int(lines.begins[index]),
                int(lines.ends[index]),
                payloads[index],
            )
        opening = np.concatenate(([0], closing[:-1] + 1)) if len(closing) else closing
        return Frames(
            lines.begins[opening],
            lines.ends[closing],
            Payloads(payloads.buffer, payloads.begins[opening], payloads.ends[closing]),
            error=lines.error,
        )

    def _take(self, found: _Found, begin: int, end: int, line: bytes) -> None:
        if not self._open:
            self._begin = begin
        quote_turns = line.count(b'"') % 2 == 1
        # The record ends here: its open quote is closed, or none was opened.
        if quote_turns == bool(self._open):
            self._close(found, end, line)
            return
        self._open.append(line)
        self._open_bytes += end - begin

    def _is_damaged(self, begin: int, line: bytes) -> bool:
        """Tell whether the open record lost its closing quote.

        It did if the next record begins, a skipped line lies within the open one, or the open one is too long.
        """
        return (
            _UUID_FIELD.match(line) is not None
            or begin != self._begin + self._open_bytes
            or self._open_bytes + len(line) > FRAME_BYTES_MAX
        )

    def _skip_open(self) -> None:
        self._skipped.add(self._begin, b"\n".join([*self._open, b""]))
        self._skipped.close()
        self._open.clear()
        self._open_bytes = 0

    def _close(self, found: _Found, end: int, line: bytes) -> None:
        found.begins.append(self._begin)
        found.ends.append(end)
        found.payloads.append(b"\n".join([*self._open, line]))
        self._open.clear()
        self._open_bytes = 0


# ---- The content type ----


def _message_type(labels: LabelSet, message_class: type[Any] | None) -> MessageType:
    del labels
    if message_class is not None:
        raise ValueError("expected no class of messages: CSV records are lists of strings")
    return _AnyCsvType()


class _AnyCsvType(CsvType):
    """CSV records whose number of columns is that of the first one that is written, because no label tells it."""

    def __init__(self) -> None:
        super().__init__(columns=0)
        self._has_columns = False

    def encode(self, message: Any) -> bytes:
        if not self._has_columns:
            super().__init__(columns=len(message) - 1)
            self._has_columns = True
        return super().encode(message)


def _made_of(message_type: MessageType, values: Sequence[Any]) -> Any:
    del message_type
    (record,) = values
    if not isinstance(record, list) or not all(isinstance(field, str) for field in record):
        raise ValueError(
            'expected a list of texts, the first of which is empty for the UUID, as ["", "a", "b"]'
        )
    # A record that was read has a UUID there; a field of the user's would be lost.
    if not record or (record[0] and not _is_uuid(record[0])):
        raise ValueError(
            f"the first field {record[0]!r} is neither empty nor a UUID, which is written there"
            if record
            else "expected a field for the UUID, got none"
        )
    return list(record)


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _columns(run: MessageRun) -> list[str]:
    """Return the names of the columns of one record or more: `uuid`, `f1`, `f2` and so on."""
    record = next(iter(run.messages()), ())
    return [CSV_UUID_COLUMN, *(f"f{n}" for n in range(1, len(record)))]


def _table(run: MessageRun, schema: pa.Schema | None) -> pa.Table:
    """Return records as columns: those of the schema, or `uuid`, `f1`, `f2` and so on, which are text.

    A schema names every field in order; one that begins with `uuid` names the UUID, too.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    payloads = run.payloads
    lines = payloads.lines() if isinstance(payloads, Payloads) else None
    content: Any = Payloads.of(list(payloads)).buffer if lines is None else lines
    check_text(run, np.frombuffer(content, dtype=np.uint8))
    names = _columns(run) if schema is None else list(schema.names)
    if names[:1] == [CSV_UUID_COLUMN]:
        del names[0]
    # Never inferred: "007" is no 7, and "NaN" not nothing.
    types = {CSV_UUID_COLUMN: pa.string()} | dict.fromkeys(names, pa.string())
    if schema is not None:
        types |= dict(zip(schema.names, schema.types, strict=True))
    table = pa_csv.read_csv(
        pa.BufferReader(pa.py_buffer(content)),
        read_options=pa_csv.ReadOptions(
            use_threads=False,
            block_size=len(content) + 1,
            column_names=[CSV_UUID_COLUMN, *names],
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""]),
    )
    if table.num_rows != len(run):
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(run)} messages")
    return table if schema is None else table.select(schema.names)


CONTENT: Final = ContentType(
    name=CSV,
    framing=CsvFraming(),
    message_type=_message_type,
    shown=lambda message: [message],
    is_text=True,
    made_of=_made_of,
    table=_table,
    table_columns=_columns,
    spark_columns="csv",
)
