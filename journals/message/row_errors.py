"""The error of a value that no message can hold, with the column and the row that it is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RowValueError(ValueError):
    """A row of columns cannot become a message, because of one of its values."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(f"column {column}, row {row}: {reason}")
        self.column = column
        self.row = row
        """Index of the row among those that were given."""
        self.reason = reason

    def at(self, row: int) -> RowValueError:
        """Return the error for the index of the row elsewhere."""
        return RowValueError(self.column, row, self.reason)


def named_value_error(
    name: str, column: Any, write: Callable[[Any], object], error: Exception
) -> RowValueError:
    """Return the error of the first row of a column that cannot be written.

    Args:
        name: The column's name.
        column: N values, which `write` refuses together.
        write: Writes some of them, and raises an error if it cannot.
        error: Of all of them, whose words are taken if they say why.
    """
    first, end = 0, len(column)
    # Of two halves, the first one that is refused holds the row that is sought.
    while end - first > 1:
        middle = (first + end) // 2
        if _refusal(_rows(column, first, middle), write) is None:
            first = middle
        else:
            end = middle
    said = _refusal(_rows(column, first, end), write)
    # Our own errors say what to do, and a library's say what it saw.
    cause = error if type(error) is ValueError or said is None else said
    reason = " ".join(str(cause).split()) or type(cause).__name__
    return RowValueError(name, first, reason)


def _rows(column: Any, begin: int, end: int) -> Any:
    """Return some rows of a column, without the elements of other rows' lists, which a slice would keep."""
    import pyarrow as pa

    try:
        return column.take(pa.array(range(begin, end)))
    except pa.ArrowNotImplementedError:  # such as for views
        return column.slice(begin, end - begin)


def _refusal(column: Any, write: Callable[[Any], object]) -> Exception | None:
    try:
        write(column)
    # Arrow, orjson and Python's own types raise errors of many classes for values that they refuse.
    except Exception as error:
        return error
    return None
