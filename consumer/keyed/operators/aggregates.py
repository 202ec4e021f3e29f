"""Aggregates of groups: partial results of rows, merged with those of state, column by column.

    rows ─► partial columns, a row a group ─┐
    state ─► the same columns ──────────────┴─► merged by group ─► state, results

Arrow reduces all columns in one pass. As in SQL an aggregate skips nulls, and is null without any value; a minimum and
a maximum skip NaN too, because a minimum that is NaN for ever says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.consumer.keyed.event_times import Times
from broadsheet.consumer.keyed.operators.aggregate import Aggregate, BoundAggregate
from broadsheet.consumer.keyed.operators.timed_rows import (
    Codes,
    Groups,
    as_stored,
    flat,
    stored_type,
)
from broadsheet.runtime.errors import ValidationError

_SUM_MAX: Final = float(1 << 63) * (1 - 2**-40)
_DIGITS: Final = 38


class MergedAggregates:
    """Some aggregates by the name of their result."""

    def __init__(self, declared: Mapping[str, Aggregate], schema: pa.Schema) -> None:
        """Bind them to the columns of a schema.

        Raises:
            ValidationError: there is none, a field is missing, or has another type; the error names the aggregate.
        """
        if not declared:
            raise ValidationError("agg", "expected an aggregate, such as total=sum_('amount')")
        self._bound = {name: bound(name, each, schema) for name, each in declared.items()}
        self.stored = [type_ for each in self._bound.values() for type_ in each.stored]
        self.fields = [pa.field(name, each.type) for name, each in self._bound.items()]
        """Of results."""
        self.identity = ", ".join(f"{name} = {each}" for name, each in declared.items())
        self.state_types = {
            f"agg.{name}{part}": str(type_)
            for name, each in self._bound.items()
            for part, type_ in [
                ("", each.type),
                *((f".{number}", stored) for number, stored in enumerate(each.stored, 1)),
            ]
        }

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        """Return the columns of state of rows, a row a group."""
        parts: list[pa.Array] = []
        for name, each in self._bound.items():
            try:
                parts += each.partial(groups, table, times)
            except OverflowError as error:
                raise _does_not_fit(name) from error
        return parts

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return columns of state merged by group."""
        if len(groups) == len(groups.codes):
            order = pa.array(groups.firsts)
            return [column.take(order) for column in columns]
        parts: list[pa.Array] = []
        at = 0
        for name, each in self._bound.items():
            end = at + len(each.stored)
            try:
                parts += each.merged(groups, columns[at:end])
            except OverflowError as error:
                raise _does_not_fit(name) from error
            at = end
        return parts

    def results(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return a column of results of each aggregate."""
        results, at = [], 0
        for each in self._bound.values():
            end = at + len(each.stored)
            results.append(each.results(columns[at:end]))
            at = end
        return results


def _does_not_fit(name: str) -> ValidationError:
    return ValidationError(
        f"agg.{name}", "expected a sum that fits into int64; add the field up as double or decimal"
    )


def bound(name: str, declared: Any, schema: pa.Schema) -> BoundAggregate:
    """Bind an aggregate to the columns of a schema.

    Raises:
        ValidationError: the field is missing, or has a type that cannot be aggregated so.
    """
    where = f"agg.{name}"
    if not isinstance(declared, Aggregate):
        raise ValidationError(
            where, f"expected an aggregate such as sum_('amount'), got {declared!r}"
        )
    if declared.kind == "count" and declared.field is None:
        return _Rows()
    field = declared.field or ""
    if field not in schema.names:
        raise ValidationError(
            where, f"expected a column among {', '.join(schema.names)}; got {field!r}"
        )
    type_ = schema.field(field).type
    match declared.kind:
        case "count":
            return _Reduced(field, type_, (("count", "sum"),), pa.int64(), [pa.int64()])
        case "sum":
            return _Sum(field, _summable(where, type_))
        case "mean":
            return _Mean(field, _summable(where, type_))
        case "min" | "max":
            if pa.types.is_boolean(type_):
                raise ValidationError(where, f"expected a column with an order, got {type_}")
            stored = stored_type(where, type_)
            # Decimals are in order as numbers, and not as the text that state has.
            kept = type_ if pa.types.is_decimal128(type_) else stored
            steps = ((declared.kind, declared.kind),)
            return _Reduced(field, kept, steps, type_, [stored])
        case "last":
            return _Last(field, type_, stored_type(where, type_))
    from broadsheet.consumer.keyed.operators.sketches import bound_sketch

    return bound_sketch(where, declared, type_)


def _summable(where: str, type_: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(type_) and str(type_) != "uint64":
        return pa.int64()
    if pa.types.is_floating(type_):
        return pa.float64()
    if pa.types.is_decimal128(type_):
        return pa.decimal128(_DIGITS, type_.scale)
    raise ValidationError(where, f"expected a column of numbers, got {type_}")


# -- the kinds


def reduced(groups: Groups, columns: Sequence[Any], functions: Sequence[str]) -> list[pa.Array]:
    """Reduce columns by group, shape (groups,) each, each with a function of Arrow's."""
    names = [str(at) for at in range(len(columns))]
    table = pa.table([pa.array(groups.codes), *columns], names=["group", *names])
    found = table.group_by("group", use_threads=False).aggregate(
        list(zip(names, functions, strict=True))
    )
    numbers = found.column("group").to_numpy()
    results = [
        flat(found.column(f"{name}_{function}"))
        for name, function in zip(names, functions, strict=True)
    ]
    if (numbers == np.arange(len(numbers))).all():
        return results
    # Arrow has groups in the order of their first rows.
    order = pa.array(np.argsort(numbers))
    return [result.take(order) for result in results]


class _Rows:
    """The number of rows."""

    stored: Sequence[pa.DataType] = (pa.int64(),)
    type = pa.int64()

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        del table, times
        return [pa.array(np.bincount(groups.codes, minlength=len(groups)), pa.int64())]

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return reduced(groups, columns, ["sum"])

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        return columns[0]


class _Reduced:
    """A count of values, a minimum or a maximum."""

    def __init__(
        self,
        field: str,
        kept: pa.DataType,
        steps: Sequence[tuple[str, str]],
        type_: pa.DataType,
        stored: Sequence[pa.DataType],
    ) -> None:
        self.field, self.type, self.stored = field, type_, stored
        self._kept = kept
        """Type by which values are compared."""
        self._steps = steps

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        del times
        column = table.column(self.field)
        if self.type == pa.int64() and self._steps[0][0] == "count":
            return reduced(groups, [column], ["count"])
        column = _without_nan(as_stored(column, self._kept))
        found = reduced(groups, [column], [self._steps[0][0]])
        return [as_stored(found[0], self.stored[0])]

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        column = columns[0]
        if pa.types.is_decimal(self._kept):
            column = column.cast(self._kept)
        found = reduced(groups, [column], [self._steps[0][1]])
        return [as_stored(found[0], self.stored[0])]

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        return as_stored(columns[0], self.type)


class _Sum:
    """A sum."""

    def __init__(self, field: str, type_: pa.DataType) -> None:
        self.field, self.type = field, type_
        self.stored: Sequence[pa.DataType] = (stored_type(field, type_),)

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        del times
        return self._summed(groups, table.column(self.field).cast(self.type))

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return self._summed(groups, columns[0].cast(self.type))

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        return columns[0].cast(self.type)

    def _summed(self, groups: Groups, column: Any) -> list[pa.Array]:
        sums = reduced(groups, [column], ["sum"])[0]
        if pa.types.is_integer(self.type) and _may_overflow(column):
            # Arrow's sum wraps.
            approximate = reduced(groups, [column.cast(pa.float64())], ["sum"])[0]
            largest = pc.max(pc.abs(approximate)).as_py()
            if largest is not None and largest >= _SUM_MAX:
                raise OverflowError
        return [as_stored(sums, self.stored[0])]


def _may_overflow(column: Any) -> bool:
    found = pc.min_max(column).as_py()
    largest = max(abs(found["min"] or 0), abs(found["max"] or 0))
    return bool(largest * max(len(column), 1) >= 1 << 62)


class _Mean:
    """A sum and a count."""

    type = pa.float64()

    def __init__(self, field: str, type_: pa.DataType) -> None:
        self._sum = _Sum(field, type_)
        self.stored: Sequence[pa.DataType] = (*self._sum.stored, pa.int64())

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        counts = reduced(groups, [table.column(self._sum.field)], ["count"])
        return self._sum.partial(groups, table, times) + counts

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return self._sum.merged(groups, columns[:1]) + reduced(groups, columns[1:], ["sum"])

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        sums = self._sum.results(columns[:1])
        # Not a safe cast: an integer of more than 53 bits is rounded, as any mean is.
        return pc.divide(sums.cast(pa.float64(), safe=False), columns[1].cast(pa.float64()))


class _Last:
    """A value, and the event time of its row."""

    def __init__(self, field: str, type_: pa.DataType, stored: pa.DataType) -> None:
        self.field, self.type = field, type_
        self.stored: Sequence[pa.DataType] = (pa.int64(), stored)

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        values = flat(as_stored(table.column(self.field), self.stored[1]))
        return self._latest(groups, times, pa.array(times), values)

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        times = pc.fill_null(columns[0], 0).to_numpy()
        return self._latest(groups, times, columns[0], columns[1])

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        return as_stored(columns[1], self.type)

    def _latest(
        self, groups: Groups, times: Times, stamps: pa.Array, values: pa.Array
    ) -> list[pa.Array]:
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        # Stable, so that of rows of one time the one that arrived last is the last.
        order = present[np.argsort(times[present], kind="stable")]
        rows: Codes = np.full(len(groups), -1, np.int64)
        rows[groups.codes[order]] = order
        at = pa.array(rows, mask=rows < 0)
        return [stamps.take(at), values.take(at)]


def _without_nan(column: Any) -> Any:
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
