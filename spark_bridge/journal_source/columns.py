"""The columns of a DataFrame of messages: the messages' own, and the journal's metadata of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broadsheet.journals.message.uuid import UNIX_EPOCH_TICKS
from broadsheet.spark_bridge.arrow_schema import arrow_schema_of
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.message_table import Offsets, table_of

METADATA_TYPES: Final[Mapping[str, DataType]] = MappingProxyType(
    {
        "_journal": StringType(),
        "_begin": LongType(),
        "_end": LongType(),
        "_uuid": StringType(),
        "_producer": StringType(),
        "_published_at": TimestampType(),
    }
)
_CORRUPT_TYPES: Final = (StringType, BinaryType)
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_PRODUCER_DIGITS: Final = 12


class RowColumns:
    """The columns of a read."""

    def __init__(
        self, schema: StructType, *, include_metadata: bool, corrupt: str | None = None
    ) -> None:
        """Select the columns that Spark asks for.

        Args:
            schema: The columns.
            include_metadata: Whether the journal's metadata of a message must be among them.
            corrupt: Name of the column for the bytes of damaged records; None if there is none.

        Raises:
            OptionError: metadata that was asked for is missing, or has another type.
        """
        names = set(schema.names)
        missing = METADATA_TYPES.keys() - names
        if include_metadata and missing:
            expected = (
                f"columns {', '.join(sorted(missing))} in the schema beside includeMetadata; "
                "or give the schema by the option schema, which adds them"
            )
            raise OptionError("includeMetadata", expected, got="true")
        for field in schema:
            wanted = METADATA_TYPES.get(field.name, field.dataType)
            if field.dataType != wanted:
                expected = f"column {field.name} of type {wanted.simpleString()}"
                raise OptionError("schema", expected, got=field.dataType.simpleString())
        self.schema = schema
        self.corrupt = next((field for field in schema if field.name == corrupt), None)
        """Column of damaged records, if there is one."""
        if self.corrupt is not None and not isinstance(self.corrupt.dataType, _CORRUPT_TYPES):
            expected = f"column {corrupt} of type string or binary, for it takes damaged records"
            raise OptionError("schema", expected, got=self.corrupt.dataType.simpleString())
        others = METADATA_TYPES.keys() | {corrupt}
        self.of_messages = StructType([f for f in schema if f.name not in others])
        self.wants_uuids = bool(names & {"_uuid", "_producer", "_published_at"})
        self.wants_offsets = bool(names & {"_begin", "_end"})

    def arrow_schema(self) -> pa.Schema:
        """Return the columns in Spark's order."""
        return arrow_schema_of(self.schema)

    def batch(self, values: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        """Return columns as a batch; those without values are null.

        Args:
            values: By column; those outside the schema are ignored.
            rows: Number of rows.

        Raises:
            ValueError: a column that must not be null is null.
        """
        schema = self.arrow_schema()
        arrays = [_column(values.get(field.name), field, rows) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def with_metadata(schema: StructType) -> StructType:
    """Return the columns, followed by the journal's metadata of each message.

    Raises:
        OptionError: a column has the name of a metadata column.
    """
    if taken := METADATA_TYPES.keys() & set(schema.names):
        expected = f"no column {', '.join(sorted(taken))} of messages beside includeMetadata"
        raise OptionError("schema", expected, got=", ".join(schema.names))
    return StructType([*schema.fields, *(StructField(n, t) for n, t in METADATA_TYPES.items())])


def metadata_columns(
    journal: str, *, begins: Offsets, ends: Offsets, uuids: bytes | None
) -> dict[str, pa.Array]:
    """Return the journal's metadata of N messages, by column.

    Args:
        journal: Its name.
        begins: Shape (N,), bytes.
        ends: Shape (N,), bytes.
        uuids: 16 bytes each, one after the other; None if no column needs them.
    """
    columns: dict[str, pa.Array] = {
        "_journal": pa.repeat(journal, len(begins)),
        "_begin": pa.array(begins),
        "_end": pa.array(ends),
    }
    if uuids is not None:
        columns |= _uuid_columns(begins, ends, uuids)
    return columns


def _uuid_columns(begins: Offsets, ends: Offsets, uuids: bytes) -> dict[str, pa.Array]:
    codes = np.frombuffer(uuids, dtype=np.uint8).reshape(-1, 16)
    table = table_of(begins, ends, uuids)
    digits = np.stack((_DIGITS[codes >> 4], _DIGITS[codes & 15]), axis=2).reshape(-1, 32)
    texts = np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)
    # A UUID of zeros stands for a message without one.
    absent = ~codes.any(axis=1)
    unsequenced = table.clocks == 0
    ticks = (table.clocks >> np.uint64(4)).astype(np.int64) - UNIX_EPOCH_TICKS
    return {
        "_uuid": _texts(texts, absent),
        "_producer": _texts(digits[:, -_PRODUCER_DIGITS:], unsequenced),
        "_published_at": pa.array(ticks // 10, pa.timestamp("us", tz="UTC"), mask=unsequenced),
    }


def _texts(characters: NDArray[np.uint8], absent: Any) -> pa.Array:
    """Return strings of equal length, shape (N, characters), null where they are absent."""
    count, width = characters.shape
    ends = pa.py_buffer(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    data = pa.py_buffer(np.ascontiguousarray(characters))
    texts = pa.Array.from_buffers(pa.string(), count, [None, ends, data])
    return pa.compute.if_else(pa.array(absent), pa.scalar(None, pa.string()), texts)


def _column(values: Any, field: Any, rows: int) -> pa.Array:
    if values is None:
        values = pa.nulls(rows, field.type)
    if values.type != field.type:
        values = values.cast(field.type)
    if not field.nullable and values.null_count:
        raise ValueError(f"column {field.name} must not be null, and a message has none")
    return values
