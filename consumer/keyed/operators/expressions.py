"""Expressions over columns: those of `pyarrow.compute`, checked against a schema when a plan is made.

col("price") * 0.9        pc.starts_with(col("url"), pattern="https:")        col("state").isin(["OR", "ID"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from broadsheet.runtime.errors import ValidationError


def col(name: str) -> Any:
    """Return the expression of a column."""
    return pc.field(name)


def lit(value: Any) -> Any:
    """Return the expression of a constant."""
    return pc.scalar(value)


def evaluated(table: pa.Table, expressions: Mapping[str, Any]) -> pa.Table:
    """Return a column of each expression, for the rows of a table."""
    names, values = list(expressions), list(expressions.values())
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions(values, names)),
        ]
    )
    # In this thread: a shard has one, and the rows keep their order.
    return plan.to_table(use_threads=False)


def checked(where: str, schema: pa.Schema, expressions: Mapping[str, Any]) -> pa.Schema:
    """Return the columns that expressions make of rows of a schema.

    Args:
        where: Before the name of an expression in errors.
        schema: Of the rows.
        expressions: By name.

    Raises:
        ValidationError: one is none, names a column that is not there, or has operands of types that do not fit.
    """
    fields = []
    for name, expression in expressions.items():
        if not isinstance(expression, pc.Expression):
            raise ValidationError(
                f"{where}.{name}",
                f"expected a column's name or an expression such as col('price') * 2, got {expression!r}",
            )
        try:
            found = evaluated(schema.empty_table(), {name: expression}).schema.field(0)
        except (pa.ArrowException, TypeError) as error:
            problem = str(error).splitlines()[0]
            raise ValidationError(
                f"{where}.{name}", f"expected an expression over {_columns(schema)}: {problem}"
            ) from error
        fields.append(found)
    return pa.schema(fields)


def require_columns(where: str, schema: pa.Schema, names: Sequence[str]) -> None:
    """Refuse names that are no columns.

    Raises:
        ValidationError: one is none; the error lists those that there are.
    """
    for name in names:
        if name not in schema.names:
            raise ValidationError(
                where, f"expected a column among {_columns(schema)}; got {name!r}"
            )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(schema.names) or "no columns"
