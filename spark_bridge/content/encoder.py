"""The interface of encoders, which turn rows into messages, and a check of the types that they write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.stamps import Stamper

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.journals.message.column_texts import Indices

Stretches: TypeAlias = Sequence[tuple[int, int]]
"""Non-empty ranges [begin, end) of rows, each for one journal; shape (S,)."""


class Encoded(NamedTuple):
    """Messages ready to be appended."""

    contents: Sequence[bytes | memoryview]
    """Whole frames of each stretch of rows; shape (S,)."""
    messages: list[int]
    """Number of messages; shape (S,)."""


class Encoder(Protocol):
    """Turns rows into messages. Pickled on the driver, used in tasks."""

    content_type: str

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the messages of each stretch of rows.

        Args:
            rows: N of them.
            stretches: The rows of each journal.
            stamper: Mints the messages' UUIDs.
            order: Row indices, shape (N,), in the order in which rows are written and counted by `stretches`; None: as
                they are.

        Raises:
            RowValueError: a value cannot be encoded, or its message would be longer than readers take.
        """
        ...

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a framed acknowledgement, given its 16-byte UUID."""
        ...


def in_order(rows: pa.RecordBatch, order: Indices | None) -> pa.RecordBatch:
    """Return rows in the order of writing, for encoders that write them one after the other."""
    if order is None:
        return rows
    import pyarrow as pa

    # Wrapped, because Arrow takes twice as long with the NumPy array itself.
    return rows.take(pa.array(order))


@contextmanager
def given_rows(order: Indices | None, begin: int = 0) -> Iterator[None]:
    """Name the rows of errors by their index as they were given.

    Args:
        order: Row indices in the order of writing; None: as they are.
        begin: Place in that order from which the errors count.
    """
    try:
        yield
    except RowValueError as error:
        place = begin + error.row
        raise error.at(place if order is None else int(order[place])) from error


# ---- Types that an encoding can write: checked on the driver, before any task runs ----------------

_PLAIN = (
    BinaryType,
    BooleanType,
    DateType,
    NullType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)


_NESTED = (ArrayType, MapType, StructType)


def check_columns(schema: StructType, *, form: str, nested: bool) -> None:
    """Refuse columns that cannot be written.

    Args:
        schema: Of the rows.
        form: Name of the encoding, for the error.
        nested: Whether lists, maps and structs can be written.

    Raises:
        PublishError: a column has a type that cannot be written, or two have one name.
    """
    _check_names(schema)
    for path, kind in _leaves(schema, ""):
        if isinstance(kind, MapType) and isinstance(kind.keyType, _NESTED):
            raise PublishError(
                f"column {path}: a key becomes a text, which {kind.keyType.simpleString()} has none of"
            )
        if isinstance(kind, _NESTED):
            if not nested:
                raise PublishError(
                    f"column {path}: {form} takes no {kind.simpleString()}; write plain columns, "
                    "e.g. make it text by to_json()"
                )
        elif not isinstance(kind, _PLAIN):
            raise PublishError(
                f"column {path}: {form} takes no {kind.simpleString()}; cast it to a type it takes, "
                "e.g. string"
            )


def check_arrow_columns(schema: StructType) -> None:
    """Refuse columns that Arrow messages cannot hold, or that nothing could read from them.

    Raises:
        PublishError: a column has such a type, or two have one name; or there is none.
    """
    # Without a column a message is an acknowledgement, so the rows would be lost.
    _check_names(schema)
    for path, kind in _leaves(schema, ""):
        # Spark hands the former over as nothing that Arrow's Python has; a void column has no type to be read as.
        if isinstance(kind, (YearMonthIntervalType, CalendarIntervalType, NullType)):
            raise PublishError(
                f"column {path}: Arrow messages take no {kind.simpleString()}; cast it to a type they take, e.g. string"
            )


def _check_names(schema: StructType) -> None:
    if not schema.fields:
        raise PublishError("schema: expected at least one column")
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise PublishError(f"column {name}: there are {count} of that name; rename them")


def _leaves(kind: DataType, path: str) -> Iterable[tuple[str, DataType]]:
    """Yield `kind`, unless it is the whole schema, and each type within it, with its path."""
    if path:
        yield path, kind
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        yield from _leaves(kind.keyType, f"{path}.key")
        yield from _leaves(kind.valueType, f"{path}.value")
