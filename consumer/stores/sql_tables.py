"""Converts the queries that an application shows to Arrow: SQLAlchemy's types, and rows as they stream in."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from broadsheet.consumer.state_tables import ROWS_PER_BATCH, row_batch

if TYPE_CHECKING:
    import pyarrow as pa


def schema_of(query: sa.Select[Any]) -> pa.Schema:
    """Return the columns of a query's rows."""
    import pyarrow as pa

    return pa.schema([(column.key, _arrow_type(column.type)) for column in query.subquery().c])


def rows_of(
    connection: Connection, query: sa.Select[Any], schema: pa.Schema, *, fqn: str
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a query.

    Args:
        connection: In the transaction to read in.
        query: Of rows.
        schema: Its columns to read.
        fqn: The shard, for errors.
    """
    shown = query.subquery()
    columns = [shown.c[name] for name in schema.names]
    converters = [_converter(column.type) for column in columns]
    streaming = connection.execution_options(stream_results=True, max_row_buffer=ROWS_PER_BATCH)
    result = streaming.execute(sa.select(*columns))
    with result:
        for part in result.partitions(ROWS_PER_BATCH):
            yield row_batch(_converted(part, converters), schema, fqn=fqn)


_Converter = Callable[[Any], Any]  # of values whose types the database has


def _converted(rows: Any, converters: list[_Converter | None]) -> Any:
    if not any(converters):
        return rows
    return [
        [
            value if convert is None or value is None else convert(value)
            for value, convert in zip(row, converters, strict=True)
        ]
        for row in rows
    ]


def _arrow_type(type_: sa.types.TypeEngine[Any]) -> pa.DataType:
    import pyarrow as pa

    match type_:
        case sa.Boolean():
            return pa.bool_()
        case sa.Integer():
            return pa.int64()
        case sa.Float():
            return pa.float64()
        case sa.Numeric(precision=int(precision), scale=int(scale)):
            return pa.decimal128(precision, scale)
        case sa.DateTime():
            return pa.timestamp("us", tz="UTC" if type_.timezone else None)
        case sa.Date():
            return pa.date32()
        case sa.LargeBinary():
            return pa.binary()
        case _:
            return pa.string()


def _converter(type_: sa.types.TypeEngine[Any]) -> _Converter | None:
    """Return what makes a value fit its Arrow type; None if it does."""
    if isinstance(type_, sa.JSON):
        return lambda value: msgspec.json.encode(value).decode()
    if isinstance(type_, sa.String) or _arrow_type(type_) != _text():
        return None
    return str


def _text() -> pa.DataType:
    import pyarrow as pa

    return pa.string()
