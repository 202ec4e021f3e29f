"""A JSON state as a table: an entry of an object, or an element of an array, a row; its value as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

STATE_TABLE: Final = "state"


def state_schema() -> pa.Schema:
    """Return the columns: the entry's name, or the element's index; empty for any other state."""
    import pyarrow as pa

    return pa.schema([("key", pa.string()), ("value", pa.string())])


def rows_of(state: bytes, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a state, with those columns.

    Args:
        state: As JSON. Values are passed on as they stand there.
        columns: Of `state_schema`.
    """
    for key, value in _entries(state):
        entry = {"key": key, "value": value}
        yield tuple(entry[column] for column in columns)


def _entries(state: bytes) -> Iterator[tuple[str, str]]:
    first = state.lstrip()[:1]
    if first == b"{":
        entries = msgspec.json.decode(state, type=dict[str, msgspec.Raw])
        yield from ((key, bytes(value).decode()) for key, value in entries.items())
    elif first == b"[":
        elements = msgspec.json.decode(state, type=list[msgspec.Raw])
        yield from ((str(index), bytes(each).decode()) for index, each in enumerate(elements))
    else:
        yield "", state.decode()
