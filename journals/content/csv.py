"""CSV records, whose first field is the UUID; they name no columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    # The number of columns matters only to writers.
    return CsvType(columns=0)


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
    table=_table,
    table_columns=_columns,
)
