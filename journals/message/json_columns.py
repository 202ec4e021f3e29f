"""JSON lines as Arrow columns, by Arrow's reader, where it reads what a decoder of single values would read.

Arrow's reader is lenient and, in one case, wrong: it takes a byte order mark and the literals `NaN` and `Infinity`,
and makes an invalid table of lists that begin with null. Each such case is refused here, as are rows that do not match
the messages in number. A caller then reads value by value, which either succeeds or names the value that is wrong.

Needs pyarrow, which is imported at first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def read_lines(content: bytes | memoryview, count: int, schema: pa.Schema | None) -> pa.Table:
    """Return JSON objects as a valid table, each column in one array.

    Args:
        content: The objects, one a line, in UTF-8: Arrow's reader passes other bytes on as text.
        count: Number of lines.
        schema: Columns to read; other fields are left out, absent ones are null. None: all, with the types that
            Arrow infers, but for text, which stays text if it looks like a time.

    Raises:
        pyarrow.ArrowException: the reader refuses the lines, or might read them in another way than a decoder of single
            values.
    """
    import pyarrow as pa

    if content[: len(BYTE_ORDER_MARK)] == BYTE_ORDER_MARK:
        raise pa.ArrowInvalid("a byte order mark before the first message")
    table = _parsed(content, schema)
    # An empty line, or two objects on one, would shift the rows after it.
    if table.num_rows != count:
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {count} messages")
    if schema is None:
        inferred = pa.schema([pa.field(each.name, _settled(each.type)) for each in table.schema])
        # An inferred list is never used, because its values may have moved between messages.
        if inferred != table.schema or any(map(_has_lists, inferred.types)):
            table = _parsed(content, inferred)
    # Lists of nothing but nulls are invalid even with a declared type; other columns are valid by construction.
    if any(map(_has_lists, table.schema.types)):
        table.validate(full=True)
    for column in doubles_of(table):
        _check_finite(column)
    return table


def _parsed(content: bytes | memoryview, schema: pa.Schema | None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json as pa_json

    return pa_json.read_json(
        pa.BufferReader(pa.py_buffer(content)),
        # One block, so that each column is one array; and no threads, because shards and Spark's tasks share the cores.
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )


def _settled(kind: Any) -> Any:
    """Return the type of a column for an inferred one: times are text."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _settled(field.type)) for field in kind])
    return kind


def _has_lists(kind: Any) -> bool:
    """Tell whether a type is a list, or holds one."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(_has_lists(field.type) for field in kind)
    return bool(pa.types.is_nested(kind))


def doubles_of(table: pa.Table) -> Iterator[Any]:
    """Yield the arrays of floating-point numbers in a table, those within lists and structs too."""
    import pyarrow as pa

    return _leaves_of(table, pa.types.is_floating)


def integers_of(table: pa.Table) -> Iterator[Any]:
    """Yield the arrays of integers in a table, those within lists and structs too."""
    import pyarrow as pa

    return _leaves_of(table, pa.types.is_integer)


def _leaves_of(table: pa.Table, is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    import pyarrow as pa

    waiting = [chunk for column in table.columns for chunk in column.chunks]
    while waiting:
        values = waiting.pop()
        kind = values.type
        if is_wanted(kind):
            yield values
        elif pa.types.is_struct(kind):
            waiting += [values.field(index) for index in range(kind.num_fields)]
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            waiting.append(values.values)


def _check_finite(values: Any) -> None:
    """Refuse NaN and infinity, which come from literals that JSON does not have.

    Raises:
        pyarrow.ArrowInvalid: there is one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    total = pc.sum(values).as_py()
    # A sum of large numbers may be infinite, too.
    if total is None or math.isfinite(total) or pc.all(pc.is_finite(values)).as_py():
        return
    raise pa.ArrowInvalid("NaN or Infinity, which JSON does not have")
