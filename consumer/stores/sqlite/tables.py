"""The rows of a SQLite store's tables: as Arrow, and upserts of whole runs.

A column's type is that of its declaration (sqlite.org/datatype3.html, 3.1), with BOOLEAN, DATE and TIME told apart:

    ...INT...  int64      ...CHAR, CLOB, TEXT...  string    ...BLOB...      binary
    BOOL...    bool       ...DATE, TIME...        string    any other       float64

A column without a declared type, as views have for what they compute, is what its first value is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from broadsheet.consumer.errors import StoreError, StoreUnavailableError
from broadsheet.consumer.stores.sqlite.connections import own_cursor
from broadsheet.consumer.stores.state_tables import ROWS_PER_BATCH, row_batch
from broadsheet.runtime.errors import ValidationError

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
    for (name,) in own_cursor(connection).execute(_LIST).fetchall():
        declared = (
            own_cursor(connection)
            .execute(
                "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> ?", (name, _HIDDEN)
            )
            .fetchall()
        )
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
        cursors.append(own_cursor(connection).execute(f"SELECT {names} FROM {_quoted(table)}"))  # noqa: S608 - quoted

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


ROWS_PER_STATEMENT: Final = 100
"""Rows of one INSERT: it takes two thirds of the time of as many executions of one for a row, and more gain no more."""
_VARIABLES_MAX: Final = 32_766


def upsert(
    connection: sqlite3.Connection,
    table: str,
    columns: Mapping[str, list[Any]],
    key: Sequence[str],
    set_: Mapping[str, str] | None,
) -> None:
    """Insert rows in order; rows whose key is there update it.

    Args:
        connection: In the transaction.
        table: Into which.
        columns: Values by name, of one length.
        key: Names of the columns of a primary key or unique index.
        set_: SQL expressions by column that a row which is there gets; None: all new values.

    Raises:
        ValidationError: a column of the key is missing.
    """
    if not key or not set(key) <= columns.keys():
        raise ValidationError("key", f"expected some of {', '.join(columns)}; got {', '.join(key)}")
    if set_ is None:
        set_ = {name: f"excluded.{_quoted(name)}" for name in columns if name not in key}
    changes = ", ".join(f"{_quoted(name)} = {expression}" for name, expression in set_.items())
    names, keys = (", ".join(map(_quoted, each)) for each in (columns, key))
    row = f"({', '.join('?' * len(columns))})"

    def statement(rows: int) -> str:
        return (
            f"INSERT INTO {_quoted(table)} ({names}) VALUES {', '.join([row] * rows)} "  # noqa: S608 - quoted
            f"ON CONFLICT ({keys}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"
        )

    execute_in_runs(statement, list(columns.values()), connection.execute, connection.executemany)


def execute_in_runs(
    statement: Callable[[int], str],
    columns: Sequence[list[Any]],
    execute: Callable[[str, tuple[Any, ...]], object],
    execute_each: Callable[[str, list[tuple[Any, ...]]], object],
) -> None:
    """Execute a statement that takes many rows, for all of a run.

    Args:
        statement: Returns the text for a number of rows, with parameters row by row.
        columns: Of one length.
        execute: Executes a statement once.
        execute_each: Executes one for each row.
    """
    rows = list(zip(*columns, strict=True))
    step = min(ROWS_PER_STATEMENT, _VARIABLES_MAX // len(columns))
    whole = len(rows) - len(rows) % step
    text = statement(step) if whole else ""
    for begin in range(0, whole, step):
        execute(text, tuple(chain.from_iterable(rows[begin : begin + step])))
    # One text for any number of rows, because connections keep only so many prepared statements.
    if whole < len(rows):
        execute_each(statement(1), rows[whole:])


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
    row = (
        own_cursor(connection)
        .execute(
            f"SELECT typeof({name}) FROM {_quoted(table)} WHERE {name} IS NOT NULL LIMIT 1"  # noqa: S608 - quoted
        )
        .fetchone()
    )
    return row[0] if row else "text"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
