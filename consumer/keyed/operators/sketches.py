"""Approximate aggregates: sketches of Apache DataSketches, as bytes in state. Needs the extra `[aggregate]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from broadsheet.consumer.keyed.event_times import Times
from broadsheet.consumer.keyed.operators.aggregate import Aggregate, BoundAggregate
from broadsheet.consumer.keyed.operators.timed_rows import Groups, as_stored, flat, stored_type
from broadsheet.runtime.errors import ExtraMissingError, ValidationError

try:
    import datasketches
except ImportError as error:
    raise ExtraMissingError(
        "a distinct count or a quantile of a stream",
        "aggregate",
        "datasketches",
        module="datasketches",
    ) from error

from broadsheet.consumer.stores.aggregate.columns import distinct_parts, quantile_of, sorted_parts


def bound_sketch(where: str, declared: Aggregate, type_: pa.DataType) -> BoundAggregate:
    """Bind an approximate aggregate to a column.

    Raises:
        ValidationError: a bound, or the type of the column, is none that can be used.
    """
    assert declared.field is not None, "a sketch is of a field"
    if declared.kind == "distinct":
        (precision,) = declared.options
        if not 7 <= precision <= 21:
            raise ValidationError(f"{where}.precision", f"expected 7 to 21, got {precision}")
        return _Distinct(declared.field, stored_type(where, type_), precision)
    fractions, k = declared.options
    if not all(0 <= each <= 1 for each in fractions):
        raise ValidationError(f"{where}.fractions", f"expected numbers in [0, 1], got {fractions}")
    if not 8 <= k <= 65535:
        raise ValidationError(f"{where}.k", f"expected 8 to 65535, got {k}")
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        raise ValidationError(where, f"expected a column of numbers, got {type_}")
    return _Quantiles(declared.field, fractions, k)


class _Sketch:
    """One sketch a group."""

    stored: Sequence[pa.DataType] = (pa.binary(),)

    def _new(self) -> Any:
        raise NotImplementedError

    def _read(self, content: bytes) -> Any:
        raise NotImplementedError

    def _content(self, sketch: Any) -> bytes:
        raise NotImplementedError

    def _union(self, sketches: Sequence[bytes]) -> bytes:
        raise NotImplementedError

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the unions of sketches by group."""
        parts: list[list[bytes]] = [[] for _ in range(len(groups))]
        for code, content in zip(groups.codes.tolist(), columns[0].to_pylist(), strict=True):
            if content is not None:
                parts[code].append(content)
        united = [
            (self._union(part) if len(part) > 1 else part[0]) if part else None for part in parts
        ]
        return [pa.array(united, pa.binary())]


class _Distinct(_Sketch):
    """A HyperLogLog sketch."""

    type = pa.int64()

    def __init__(self, field: str, kept: pa.DataType, precision: int) -> None:
        self.field = field
        self._kept = kept
        self._precision = precision

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        """Return the sketches of rows."""
        del times
        array = flat(as_stored(table.column(self.field), self._kept))
        codes = groups.codes
        if array.null_count:
            codes = codes[array.is_valid().to_numpy(zero_copy_only=False)]
            array = array.drop_null()
        found: list[bytes | None] = [None] * len(groups)
        if len(array):
            for code, values in distinct_parts(codes, array):
                sketch = datasketches.hll_sketch(self._precision, datasketches.HLL_4)
                for value in values:
                    sketch.update(value)
                found[code] = sketch.serialize_compact()
        return [pa.array(found, pa.binary())]

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return estimates."""
        read = datasketches.hll_sketch.deserialize
        return pa.array(
            [
                0 if content is None else round(read(content).get_estimate())
                for content in columns[0].to_pylist()
            ],
            self.type,
        )

    def _union(self, sketches: Sequence[bytes]) -> bytes:
        union = datasketches.hll_union(self._precision)
        for content in sketches:
            union.update(datasketches.hll_sketch.deserialize(content))
        united: bytes = union.get_result(datasketches.HLL_4).serialize_compact()
        return united


class _Quantiles(_Sketch):
    """A KLL sketch."""

    type = pa.list_(pa.float64())

    def __init__(self, field: str, fractions: Sequence[float], k: int) -> None:
        self.field = field
        self._fractions = fractions
        self._k = k

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        """Return the sketches of rows; NaN is no value."""
        del times
        column = flat(table.column(self.field).cast(pa.float64(), safe=False))
        values = column.to_numpy(zero_copy_only=False)
        present = ~np.isnan(values)
        codes = groups.codes[present]
        found: list[bytes | None] = [None] * len(groups)
        if len(codes):
            counts = np.bincount(codes, minlength=len(groups))
            for code, part in sorted_parts(codes, values[present], counts):
                sketch = datasketches.kll_doubles_sketch(self._k)
                sketch.update(part)
                found[code] = sketch.serialize()
        return [pa.array(found, pa.binary())]

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the quantiles; null without values."""
        read = datasketches.kll_doubles_sketch.deserialize
        return pa.array(
            [
                None
                if content is None
                else [quantile_of(read(content), fraction) for fraction in self._fractions]
                for content in columns[0].to_pylist()
            ],
            self.type,
        )

    def _union(self, sketches: Sequence[bytes]) -> bytes:
        union = datasketches.kll_doubles_sketch(self._k)
        for content in sketches:
            union.merge(datasketches.kll_doubles_sketch.deserialize(content))
        united: bytes = union.serialize()
        return united
