"""Converts a SQLite store's tables and views to Arrow.

A column's type is that of its declaration (sqlite.org/datatype3.html, 3.1), with BOOLEAN, DATE and TIME told apart:

    ...INT...  int64      ...CHAR, CLOB, TEXT...  string    ...BLOB...      binary
    BOOL...    bool       ...DATE, TIME...        string    any other       float64

A column without a declared type, as views have for what they compute, is what its first value is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from broadsheet.consumer.errors import StoreError, StoreUnavailableError
from broadsheet.consumer.state_tables import ROWS_PER_BATCH, row_batch

if TYPE_CHECKING:
    import pyarrow as pa

_LIST = (
    "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') "
    "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'gazette\\_%' ESCAPE '\\' ORDER BY name"
)
_HIDDEN: Final = 1
"""Of a virtual table's column that no query shows unless it names it."""


def tables_in(connection: sqlite3.Connection) -> dict[str, pa.Schema]:
    """Return the tables and views of the application's, and their columns."""
    import pyarrow as pa

    tables = {}
    for (name,) in connection.execute(_LIST).fetchall():
        declared = connection.execute(
            "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> ?", (name, _HIDDEN)
        ).fetchall()
        tables[name] = pa.schema(
            [(column, _type(connection, name, column, type_)) for column, type_ in declared]
        )
    return tables


def rows_in(
    run: Callable[[Callable[[sqlite3.Connection], object]], object],
    table: str,
    schema: pa.Schema,
    *,
    fqn: str,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of a table.

    Args:
        run: Runs a function with exclusive use of the connection.
        table: The table.
        schema: Its columns to read.
        fqn: The shard, for errors.

    Raises:
        StoreUnavailableError: the scan took too long, and was ended.
    """
    names = ", ".join(_quoted(name) for name in schema.names)
    cursors: list[sqlite3.Cursor] = []

    def begin(connection: sqlite3.Connection) -> None:
        cursors.append(connection.execute(f"SELECT {names} FROM {_quoted(table)}"))  # noqa: S608 - quoted

    def take(_: sqlite3.Connection) -> list[tuple[object, ...]]:
        return cursors[0].fetchmany(ROWS_PER_BATCH)

    try:
        run(begin)
        while rows := run(take):
            assert isinstance(rows, list), "as `take` returns"
            yield row_batch(rows, schema, fqn=fqn)
    except sqlite3.Error as error:
        raise _failure(error, fqn) from error
    finally:
        if cursors:
            with suppress(sqlite3.ProgrammingError):  # The store was closed meanwhile.
                run(lambda _: cursors[0].close())


def _failure(error: sqlite3.Error, fqn: str) -> StoreError:
    # An error of the module's own, e.g. that the connection is closed, has no code.
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
        return StoreUnavailableError(
            fqn,
            "the scan was ended, for the write-ahead log grew too long behind it: read faster, or fewer columns, "
            "or give the store a larger wal_bytes_max",
        )
    return StoreError(fqn, f"cannot read: {error}")


def _type(connection: sqlite3.Connection, table: str, column: str, declared: str) -> pa.DataType:
    import pyarrow as pa

    by_kind: Mapping[str, pa.DataType] = {
        "integer": pa.int64(),
        "bool": pa.bool_(),
        "text": pa.string(),
        "blob": pa.binary(),
        "real": pa.float64(),
    }
    return by_kind[_kind(declared.upper()) or _first_kind(connection, table, column)]


def _kind(declared: str) -> str:
    """Return what a declared type says, empty for none."""
    if not declared:
        return ""
    if "INT" in declared:
        return "integer"
    if "BOOL" in declared:
        return "bool"
    if any(part in declared for part in ("CHAR", "CLOB", "TEXT", "DATE", "TIME")):
        return "text"
    return "blob" if "BLOB" in declared else "real"


def _first_kind(connection: sqlite3.Connection, table: str, column: str) -> str:
    name = _quoted(column)
    row = connection.execute(
        f"SELECT typeof({name}) FROM {_quoted(table)} WHERE {name} IS NOT NULL LIMIT 1"  # noqa: S608 - quoted
    ).fetchone()
    return row[0] if row else "text"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
