"""Which of Spark's types an encoding can write; asked on the driver, before any task runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_bridge.errors import PublishError

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


def check_columns(schema: StructType, *, form: str, nested: bool) -> None:
    """Refuse columns that cannot be written.

    Args:
        schema: Of the rows.
        form: What the messages are, for the error.
        nested: Whether lists, maps and structs can be written.

    Raises:
        PublishError: a column has a type that cannot be written, or two have one name.
    """
    if not schema.fields:
        raise PublishError("schema: expected at least one column")
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise PublishError(f"column {name}: there are {count} of that name; rename them")
    for path, kind in _leaves(schema, ""):
        if isinstance(kind, (ArrayType, MapType, StructType)):
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


def _leaves(kind: DataType, path: str) -> Iterable[tuple[str, DataType]]:
    """Yield each type within `kind`, itself first unless it is the whole schema, with its path."""
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
