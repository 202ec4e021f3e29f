"""CSV records, whose first field is the UUID; they name no columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np

from broadsheet.journals.content.message_type import MessageRun, MessageType
from broadsheet.journals.content.registry import ContentType
from broadsheet.journals.message.framing import CSV, CsvFraming, Payloads
from broadsheet.journals.message.json_tables import check_text
from broadsheet.journals.message.types import CsvType
from broadsheet.wire.journal_pb2 import LabelSet

if TYPE_CHECKING:
    import pyarrow as pa

CSV_UUID_COLUMN: Final = "uuid"


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
)
