"""Aggregates as columns of numpy, a slot a key.

    run of rows ─► code of each row's key (Arrow) ─► one partial result a code (numpy) ─► merged into the keys' slots

A run is grouped once for all aggregates. Only what numpy has no type for (text, decimals, sketches) is merged by a
loop, over distinct keys.

Nulls are treated as in SQL: an aggregate skips null values, and is null without any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from decimal import Context
from typing import Any, Final, Protocol, TypeAlias

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broadsheet.runtime.errors import ValidationError

ArrowType: TypeAlias = "str | pa.DataType"
"""A type of Arrow's, or its name: `int64`, `float64`, `string`, `date32`, `timestamp[us]`, …"""
Slots: TypeAlias = NDArray[np.intp]

ROWS_PER_FOLD: Final = 1 << 16
"""Rows that are grouped at a time: many enough that what a group-by costs at all is little beside them, and few enough
that sums of halves of integers are exact."""
_EXACT: Final = Context(prec=76)
"""Python's default context rounds sums of decimals to 28 digits."""
_SAFE_IN_FLOAT: Final = 2**53
_HALF_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Count:
    """The number of rows or, if a field is named, of rows where it is not null; int64."""

    field: str | None = None


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a field: int64, float64, or a decimal. An integer that does not fit is refused, never wrapped."""

    field: str
    type: ArrowType = "int64"


@dataclass(frozen=True, slots=True)
class Min:
    """The least value of a field."""

    field: str
    type: ArrowType = "int64"


@dataclass(frozen=True, slots=True)
class Max:
    """The greatest value of a field."""

    field: str
    type: ArrowType = "int64"


@dataclass(frozen=True, slots=True)
class Last:
    """The value of a field in the last row that has one, in the order in which the shard consumes rows."""

    field: str
    type: ArrowType = "string"


@dataclass(frozen=True, slots=True)
class Distinct:
    """The approximate number of distinct values of a field, int64: a HyperLogLog sketch of Apache DataSketches a key.

    Its relative standard error is 1.04 / sqrt(2 ** precision): 1.6 % at 12, in about 2 KiB a key; small numbers are
    exact, and take less.
    """

    field: str
    type: ArrowType = "string"
    precision: int = 12
    """From 7 to 21."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Approximate quantiles of a field, list of float64: a KLL sketch of Apache DataSketches a key.

    The rank of what is shown is wrong by 1.3 % at most at k = 200, in about 5 KiB a key once it has a million values.
    """

    field: str
    fractions: Sequence[float] = (0.5, 0.99)
    """Which quantiles are shown, each in [0, 1]. They may be changed at any time."""
    k: int = 200
    """From 8 to 65535."""


Aggregate: TypeAlias = Count | Sum | Min | Max | Last | Distinct | Quantiles


class GroupedRun:
    """The rows of a run by key."""

    def __init__(
        self, columns: Mapping[tuple[str, pa.DataType], pa.Array], codes: Slots, slots: Slots
    ) -> None:
        """Group them.

        Args:
            columns: By field and type.
            codes: Of the key of each row, shape (rows,).
            slots: Of each code, shape (codes,).
        """
        self.codes, self.slots = codes, slots
        self._columns = columns
        self._present: dict[tuple[str, pa.DataType], tuple[Slots, pa.Array, Slots]] = {}

    def present(self, field: tuple[str, pa.DataType]) -> tuple[Slots, pa.Array, Slots]:
        """Return codes and values of the rows that have a value, and how many those are by code."""
        found = self._present.get(field)
        if found is None:
            array, codes = self._columns[field], self.codes
            if array.null_count:
                codes = codes[array.is_valid().to_numpy(zero_copy_only=False)]
                array = array.drop_null()
            counts = np.bincount(codes, minlength=len(self.slots))
            found = self._present[field] = codes, array, counts
        return found


class Column(Protocol):
    """The state of one aggregate, by slot."""

    field: tuple[str, pa.DataType] | None
    identity: str
    recorded_type: pa.DataType
    shown_type: pa.DataType

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        ...

    def fold(self, run: GroupedRun) -> None:
        """Add a run's rows."""
        ...

    def record(self, slots: Slots) -> pa.Array:
        """Return what a file must hold of these slots, in the recorded type."""
        ...

    def put(self, slots: Slots, recorded: pa.Array) -> None:
        """Set slots to what a file holds."""
        ...

    def clear(self, slots: Slots) -> None:
        """Forget these slots."""
        ...

    def show(self, slots: Slots) -> pa.Array:
        """Return results, in the shown type."""
        ...

    def copied(self) -> Column:
        """Return another one with this state."""
        ...


# -- grouping


def grouped(keys: Sequence[pa.Array]) -> tuple[Slots, list[Any]]:
    """Return a code for each row, shape (rows,), and the distinct keys by code.

    Args:
        keys: The key's columns.
    """
    encoded = [as_plain(column).dictionary_encode() for column in keys]
    codes = encoded[0].indices.to_numpy()
    if len(encoded) == 1:
        return codes, encoded[0].dictionary.to_pylist()
    for column in encoded[1:]:
        # Codes are made dense after each field, so that their product fits however many fields there are.
        mixed = codes.astype(np.int64) * max(len(column.dictionary), 1) + column.indices.to_numpy()
        _, firsts, codes = np.unique(mixed, return_index=True, return_inverse=True)
    parts = [column.take(pa.array(firsts)).to_pylist() for column in encoded]
    return codes, joined(parts)


def joined(parts: Sequence[list[Any]]) -> list[Any]:
    """Return the keys of rows whose parts are given, field by field."""
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


# -- numbers: whatever numpy has a type for, dates and times included


class NumberColumn:
    """One number a slot, and whether it is there."""

    def __init__(self, aggregate: Count | Sum | Min | Max | Last, type_: pa.DataType) -> None:
        name = aggregate.field
        self.field = None if name is None else (name, _field_type(aggregate, type_))
        self.identity = _identity(aggregate, type_)
        self.recorded_type = self.shown_type = type_
        self._aggregate = aggregate
        self._plain_type = plain_type(type_)
        self._values = np.zeros(0, self._plain_type.to_pandas_dtype())
        self._valid = np.zeros(0, np.bool_)

    def grow(self, capacity: int) -> None:
        """Double the arrays, or more."""
        self._values, self._valid = grown(self._values, capacity), grown(self._valid, capacity)

    def fold(self, run: GroupedRun) -> None:
        """Reduce the run by code, and merge."""
        slots, parts = self._reduced(run)
        old, had = self._values[slots], self._valid[slots]
        self._values[slots] = np.where(had, self._merged(old, parts), parts)
        self._valid[slots] = True

    def _reduced(self, run: GroupedRun) -> tuple[Slots, NDArray[Any]]:
        """Return the slots that the run has a value for, and the partial result of each."""
        if self.field is None:
            return run.slots, np.bincount(run.codes, minlength=len(run.slots))
        codes, array, counts = run.present(self.field)
        if isinstance(self._aggregate, Count):
            return run.slots, counts
        if not len(array):
            return run.slots[:0], self._values[:0]
        values = _numpy(array)
        if isinstance(self._aggregate, Min | Max) and values.dtype.kind == "f":
            # Not a number is no value: a minimum that is NaN for ever would say nothing.
            numbers = ~np.isnan(values)
            codes, values = codes[numbers], values[numbers]
            counts = np.bincount(codes, minlength=len(run.slots))
            if not len(values):
                return run.slots[:0], self._values[:0]
        parts = _REDUCERS[type(self._aggregate)](codes, values, counts)
        if counts.all():
            return run.slots, parts
        return run.slots[counts > 0], parts[counts > 0]

    def _merged(self, old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        match self._aggregate:
            case Min():
                merged: NDArray[Any] = np.minimum(old, new)
            case Max():
                merged = np.maximum(old, new)
            case Last():
                merged = new
            case _:
                merged = _added(old, new)
        return merged

    def record(self, slots: Slots) -> pa.Array:
        """Return them as an Arrow array."""
        array = pa.array(self._values[slots], self._plain_type, mask=~self._valid[slots])
        return array.view(self.recorded_type)

    def put(self, slots: Slots, recorded: pa.Array) -> None:
        """Set them."""
        self._values[slots] = _numpy(recorded)
        self._valid[slots] = recorded.is_valid().to_numpy(zero_copy_only=False)

    def clear(self, slots: Slots) -> None:
        """Set them to null; a count begins with the row that makes its key."""
        self._valid[slots] = False

    def show(self, slots: Slots) -> pa.Array:
        """Return what is recorded."""
        return self.record(slots)

    def copied(self) -> NumberColumn:
        """Return one with copies of the arrays."""
        other = copy(self)
        other.detach()
        return other

    def detach(self) -> None:
        """Make a shallow copy's state its own."""
        self._values, self._valid = self._values.copy(), self._valid.copy()


def _summed(codes: Slots, values: NDArray[Any], counts: Slots) -> NDArray[Any]:
    if values.dtype.kind == "f":
        return np.bincount(codes, values, len(counts))
    largest = max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))
    if largest * len(values) < _SAFE_IN_FLOAT:
        return np.bincount(codes, values, len(counts)).astype(np.int64)
    # Two sums of halves, each exact in a float64, because bincount adds nothing else.
    high = np.bincount(codes, values >> _HALF_BITS, len(counts))
    low = np.bincount(codes, values & ((1 << _HALF_BITS) - 1), len(counts))
    exact = [
        (int(upper) << _HALF_BITS) + int(lower) for upper, lower in zip(high, low, strict=True)
    ]
    return np.array(exact, np.int64)


def _least(codes: Slots, values: NDArray[Any], counts: Slots) -> NDArray[Any]:
    parts = values[_some_row(codes, counts)]
    np.minimum.at(parts, codes, values)
    return parts


def _greatest(codes: Slots, values: NDArray[Any], counts: Slots) -> NDArray[Any]:
    parts = values[_some_row(codes, counts)]
    np.maximum.at(parts, codes, values)
    return parts


def _latest(codes: Slots, values: NDArray[Any], counts: Slots) -> NDArray[Any]:
    return values[_some_row(codes, counts)]


def _some_row(codes: Slots, counts: Slots) -> Slots:
    """Return the last row of each code: of several assignments to one place numpy keeps the last. 0 if it has none."""
    rows = np.zeros(len(counts), np.intp)
    rows[codes] = np.arange(len(codes))
    return rows


_REDUCERS: Mapping[type, Callable[[Slots, NDArray[Any], Slots], NDArray[Any]]] = {
    Sum: _summed,
    Min: _least,
    Max: _greatest,
    Last: _latest,
}


def _added(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    total: NDArray[Any] = old + new
    if total.dtype.kind == "i" and (((old ^ total) & (new ^ total)) < 0).any():
        raise OverflowError("a sum exceeds int64")
    return total


# -- objects: text, bytes and decimals


class ObjectColumn:
    """One Python object a slot; None where there is none."""

    def __init__(self, aggregate: Sum | Min | Max | Last, type_: pa.DataType) -> None:
        self.field: tuple[str, pa.DataType] | None = (aggregate.field, type_)
        self.identity = _identity(aggregate, type_)
        self.recorded_type = self.shown_type = type_
        self._aggregate = aggregate
        self._values = np.zeros(0, np.object_)

    def grow(self, capacity: int) -> None:
        """Add empty slots."""
        self._values = grown(self._values, capacity)

    def fold(self, run: GroupedRun) -> None:
        """Reduce the run by code, and merge key by key."""
        assert self.field is not None
        codes, array, counts = run.present(self.field)
        if not len(array):
            return
        codes_there = np.flatnonzero(counts)
        parts = self._reduced(codes, array, counts, codes_there)
        values, merge = self._values, self._merge()
        for slot, part in zip(run.slots[codes_there].tolist(), parts, strict=True):
            old = values[slot]
            values[slot] = part if old is None else merge(old, part)

    def _reduced(self, codes: Slots, array: pa.Array, counts: Slots, there: Slots) -> list[Any]:
        match self._aggregate:
            case Last():
                return list(array.take(pa.array(_some_row(codes, counts)[there])).to_pylist())
            case Sum():
                table = pa.table({"code": codes, "value": array})
                sums = table.group_by("code").aggregate([("value", "sum")]).sort_by("code")
                return list(sums.column("value_sum").to_pylist())
        # By ranks of the distinct values, which are numbers.
        encoded = array.dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary).to_numpy()
        ranks = np.empty(len(order), np.intp)
        ranks[order] = np.arange(len(order))
        reduce = _least if isinstance(self._aggregate, Min) else _greatest
        best = reduce(codes, ranks[encoded.indices.to_numpy()], counts)[there]
        return list(encoded.dictionary.take(pa.array(order[best])).to_pylist())

    def _merge(self) -> Callable[[Any, Any], Any]:
        match self._aggregate:
            case Sum():
                return _EXACT.add
            case Last():
                return lambda _, new: new
            case Min():
                return min
            case _:
                return max

    def record(self, slots: Slots) -> pa.Array:
        """Return them as an Arrow array."""
        try:
            return pa.array(self._values[slots], self.recorded_type)
        except pa.ArrowInvalid as error:
            raise OverflowError(str(error)) from error

    def put(self, slots: Slots, recorded: pa.Array) -> None:
        """Set them."""
        self._values[slots] = objects(recorded.to_pylist())

    def clear(self, slots: Slots) -> None:
        """Set them to None."""
        self._values[slots] = None

    def show(self, slots: Slots) -> pa.Array:
        """Return what is recorded."""
        return self.record(slots)

    def copied(self) -> ObjectColumn:
        """Return one with a copy of the references."""
        other = copy(self)
        other.detach()
        return other

    def detach(self) -> None:
        """Make a shallow copy's state its own."""
        self._values = self._values.copy()


# -- sketches


class SketchColumn:
    """One sketch a slot: as bytes until rows of its key come, None before there are any."""

    recorded_type = pa.binary()

    def __init__(self, aggregate: Distinct | Quantiles) -> None:
        self._aggregate = aggregate
        self._sketches = np.zeros(0, np.object_)
        self._recorded = np.zeros(0, np.object_)
        """The bytes that were recorded last."""
        if isinstance(aggregate, Distinct):
            type_ = _type(aggregate.field, aggregate.type)
            self.shown_type = pa.int64()
            self.identity = f"{_identity(aggregate, type_)}, precision {aggregate.precision}"
        else:
            type_ = pa.float64()
            single = len(aggregate.fractions) == 1
            self.shown_type = pa.float64() if single else pa.list_(pa.float64())
            self.identity = f"{_identity(aggregate, type_)}, k {aggregate.k}"
        self.field: tuple[str, pa.DataType] | None = (aggregate.field, type_)

    def grow(self, capacity: int) -> None:
        """Add empty slots."""
        self._sketches = grown(self._sketches, capacity)
        self._recorded = grown(self._recorded, capacity)

    def fold(self, run: GroupedRun) -> None:
        """Give each key's sketch its values."""
        assert self.field is not None
        codes, array, counts = run.present(self.field)
        if not len(array):
            return
        parts = (
            distinct_parts(codes, array)
            if isinstance(self._aggregate, Distinct)
            else sorted_parts(codes, _numpy(array), counts)
        )
        for code, part in parts:
            sketch = self._live(int(run.slots[code]))
            if isinstance(self._aggregate, Distinct):
                for value in part:
                    sketch.update(value)
            else:
                sketch.update(part)

    def record(self, slots: Slots) -> pa.Array:
        """Return the sketches that changed since they were recorded, null for the others."""
        return pa.array([self._changed(slot) for slot in slots.tolist()], self.recorded_type)

    def put(self, slots: Slots, recorded: pa.Array) -> None:
        """Set those that are not null."""
        for slot, content in zip(slots.tolist(), recorded.to_pylist(), strict=True):
            if content is not None:
                self._sketches[slot] = self._recorded[slot] = content

    def whole(self, slots: Slots) -> pa.Array:
        """Return all as bytes, as last recorded; null where there is none."""
        return pa.array(self._recorded[slots], self.recorded_type)

    def clear(self, slots: Slots) -> None:
        """Forget them."""
        self._sketches[slots] = None
        self._recorded[slots] = None

    def show(self, slots: Slots) -> pa.Array:
        """Return estimates."""
        return pa.array([self._shown(slot) for slot in slots.tolist()], self.shown_type)

    def copied(self) -> SketchColumn:
        """Return another one. Both share the recorded bytes, because these never change."""
        other = copy(self)
        other.detach()
        return other

    def detach(self) -> None:
        """Make a shallow copy's state its own."""
        self._sketches, self._recorded = self._recorded.copy(), self._recorded.copy()

    def _live(self, slot: int) -> Any:
        sketch = self._sketches[slot]
        if sketch is None:
            sketch = self._sketches[slot] = self._new()
        elif isinstance(sketch, bytes):
            sketch = self._sketches[slot] = self._read(sketch)
        return sketch

    def _new(self) -> Any:
        if isinstance(self._aggregate, Distinct):
            return datasketches.hll_sketch(self._aggregate.precision, datasketches.HLL_4)
        return datasketches.kll_doubles_sketch(self._aggregate.k)

    def _read(self, content: bytes) -> Any:
        if isinstance(self._aggregate, Distinct):
            return datasketches.hll_sketch.deserialize(content)
        return datasketches.kll_doubles_sketch.deserialize(content)

    def _changed(self, slot: int) -> bytes | None:
        sketch = self._sketches[slot]
        if sketch is None or isinstance(sketch, bytes):
            return None
        is_distinct = isinstance(self._aggregate, Distinct)
        content: bytes = sketch.serialize_compact() if is_distinct else sketch.serialize()
        if content == self._recorded[slot]:
            return None
        self._recorded[slot] = content
        return content

    def _shown(self, slot: int) -> Any:
        sketch = self._sketches[slot]
        if isinstance(sketch, bytes):
            sketch = self._read(sketch)
        if isinstance(self._aggregate, Distinct):
            return 0 if sketch is None else round(sketch.get_estimate())
        if sketch is None or sketch.is_empty():
            return None
        quantiles = [quantile_of(sketch, fraction) for fraction in self._aggregate.fractions]
        return quantiles[0] if len(quantiles) == 1 else quantiles


def quantile_of(sketch: Any, fraction: float) -> float:
    """Return a quantile that a sketch of values tells."""
    # A sketch samples values, but knows the extremes.
    if fraction == 0:
        return float(sketch.get_min_value())
    if fraction == 1:
        return float(sketch.get_max_value())
    return float(sketch.get_quantile(fraction, inclusive=True))


def distinct_parts(codes: Slots, array: pa.Array) -> Iterator[tuple[int, list[Any]]]:
    """Yield the distinct values of each code that has some: a value that comes again changes no sketch."""
    encoded = as_plain(array).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if pa.types.is_boolean(array.type):
        values = [int(value) for value in values]
    pairs = np.unique(codes.astype(np.int64) * max(len(values), 1) + encoded.indices.to_numpy())
    pair_codes, pair_values = np.divmod(pairs, max(len(values), 1))
    begins = np.flatnonzero(np.diff(pair_codes, prepend=-1))
    ends = np.append(begins[1:], len(pairs))
    chosen = pair_values.tolist()
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        yield int(pair_codes[begin]), [values[each] for each in chosen[begin:end]]


def sorted_parts(
    codes: Slots, values: NDArray[Any], counts: Slots
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the values of each code that has some, in the order of rows."""
    # numpy sorts integers of two bytes in linear time.
    narrow = codes.astype(np.uint16) if len(counts) <= np.iinfo(np.uint16).max else codes
    ordered = values[np.argsort(narrow, kind="stable")]
    ends = np.cumsum(counts).tolist()
    for code in np.flatnonzero(counts).tolist():
        yield code, ordered[ends[code] - counts[code] : ends[code]]


# -- types


def column_maker(name: str, aggregate: Aggregate) -> Callable[[], Column]:
    """Return what makes the column of an aggregate.

    Raises:
        ValidationError: a type or a bound is none that can be used; the error names it.
    """
    match aggregate:
        case Count():
            return lambda: NumberColumn(aggregate, pa.int64())
        case Distinct():
            if not 7 <= aggregate.precision <= 21:
                raise ValidationError(
                    f"{name}.precision", f"expected 7 to 21, got {aggregate.precision}"
                )
            counted = _type(f"{name}.type", aggregate.type)
            if not (_is_number(plain_type(counted)) or _family(counted) == "text"):
                raise ValidationError(
                    f"{name}.type", f"expected text, numbers or times, got {counted}"
                )
            return lambda: SketchColumn(aggregate)
        case Quantiles():
            if not aggregate.fractions or not all(0 <= each <= 1 for each in aggregate.fractions):
                raise ValidationError(
                    f"{name}.fractions", f"expected numbers in [0, 1], got {aggregate.fractions}"
                )
            if not 8 <= aggregate.k <= 65535:
                raise ValidationError(f"{name}.k", f"expected 8 to 65535, got {aggregate.k}")
            return lambda: SketchColumn(aggregate)
        case Sum() | Min() | Max() | Last():
            type_ = _value_type(name, aggregate)
            if _is_number(plain_type(type_)):
                return lambda: NumberColumn(aggregate, type_)
            return lambda: ObjectColumn(aggregate, type_)
    raise ValidationError(name, f"expected an aggregate such as Sum('field'), got {aggregate!r}")


def _value_type(name: str, aggregate: Sum | Min | Max | Last) -> pa.DataType:
    type_ = _type(f"{name}.type", aggregate.type)
    if isinstance(aggregate, Sum):
        if type_ not in (pa.int64(), pa.float64()) and not pa.types.is_decimal128(type_):
            raise ValidationError(
                f"{name}.type", f"expected int64, float64 or a decimal128, got {type_}"
            )
    elif pa.types.is_boolean(type_) and not isinstance(aggregate, Last):
        raise ValidationError(f"{name}.type", "expected a type with an order, got bool")
    elif not (_is_number(plain_type(type_)) or _family(type_) in ("text", "bytes", "decimal")):
        raise ValidationError(
            f"{name}.type", f"expected numbers, text, bytes, decimals, dates or times, got {type_}"
        )
    return type_


def key_type(name: str, given: ArrowType) -> pa.DataType:
    """Return the type of a key's field.

    Raises:
        ValidationError: it is none of Arrow's, or has values that are no keys.
    """
    type_ = _type(name, given)
    plain = plain_type(type_)
    if not (
        pa.types.is_integer(plain)
        or pa.types.is_boolean(plain)
        or _family(type_) in ("text", "bytes")
    ):
        raise ValidationError(
            name, f"expected text, bytes, integers, bool, dates or times, got {type_}"
        )
    return type_


def _type(name: str, given: ArrowType) -> pa.DataType:
    if isinstance(given, pa.DataType):
        return given
    try:
        return pa.type_for_alias(given)
    except (ValueError, TypeError) as error:
        raise ValidationError(
            name,
            f"expected a type of Arrow's such as 'int64', 'float64' or 'string', got {given!r}",
        ) from error


def _field_type(aggregate: Count | Sum | Min | Max | Last, type_: pa.DataType) -> pa.DataType:
    # What is counted may be of any type: nothing but its nulls is read.
    return pa.null() if isinstance(aggregate, Count) else type_


def _identity(aggregate: Aggregate, type_: pa.DataType) -> str:
    return f"{type(aggregate).__name__}({aggregate.field or ''}): {type_}"


def _is_number(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or (pa.types.is_floating(type_) and not pa.types.is_float16(type_))
    )


def _family(type_: pa.DataType) -> str:
    """Return what a type's values are, such that a cast within a family is no surprise."""
    types = pa.types
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return "text"
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_):
        return "bytes"
    if types.is_integer(type_) or types.is_floating(type_):
        return "number"
    if types.is_decimal(type_):
        return "decimal"
    if types.is_date(type_):
        return "date"
    if types.is_timestamp(type_):
        return "timestamp"
    return str(type_)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the integers that dates and times are; any other type as it is."""
    if pa.types.is_temporal(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    return type_


def as_plain(array: pa.Array) -> pa.Array:
    """Return an array as one of `plain_type`."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    plain = plain_type(array.type)
    return array if plain == array.type else array.view(plain)


def _numpy(array: pa.Array) -> NDArray[Any]:
    """Return numbers; where there is none, 0."""
    plain = as_plain(array)
    if plain.null_count:
        plain = plain.fill_null(False if pa.types.is_boolean(plain.type) else 0)
    numbers: NDArray[Any] = plain.to_numpy(zero_copy_only=False)
    return numbers


def run_column(name: str, column: Any, wanted: pa.DataType) -> list[pa.Array]:
    """Return a column of a run in the wanted type."""
    try:
        if not isinstance(column, pa.Array | pa.ChunkedArray):
            # Given a list, Arrow checks each value; an array of numpy has a type, which is checked below.
            free = isinstance(column, np.ndarray) or pa.types.is_null(wanted)
            column = pa.array(column) if free else pa.array(column, wanted)
        given = column.type
        if pa.types.is_dictionary(given):
            column, given = column.cast(given.value_type), given.value_type
        if pa.types.is_null(wanted):
            column = pc.true_unless_null(column)
        elif given != wanted:
            allowed = {_family(wanted)} | ({"number"} if _family(wanted) == "decimal" else set())
            if not pa.types.is_null(given) and _family(given) not in allowed:
                raise ValidationError(name, f"expected {wanted}, as it is declared; got {given}")
            column = column.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ValidationError):
            raise
        raise ValidationError(name, f"expected {wanted}, as it is declared: {error}") from error
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """Return values as an array of one dimension, shape (len(values),)."""
    # Not np.array(values): it would make numbers, or more dimensions, of some.
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def grown(array: NDArray[Any], capacity: int) -> NDArray[Any]:
    """Return an array of at least this length; what is new is 0, False or None."""
    if capacity <= len(array):
        return array
    longer = (
        np.full(capacity, None) if array.dtype == np.object_ else np.zeros(capacity, array.dtype)
    )
    longer[: len(array)] = array
    return longer
