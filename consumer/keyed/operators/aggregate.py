"""Aggregates as they are declared, and the contract of those that are bound to a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from broadsheet.consumer.keyed.event_times import Times
from broadsheet.consumer.keyed.operators.timed_rows import Groups


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A declared aggregate."""

    kind: str
    field: str | None = None
    options: tuple[Any, ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(map(str, (*((self.field,) if self.field else ()), *self.options)))
        return f"{self.kind}({inside})"


def count(field: str | None = None) -> Aggregate:
    """Count rows or, with a field, those where it is not null; int64."""
    return Aggregate("count", field)


def sum_(field: str) -> Aggregate:
    """Add a field up: int64 of integers, float64, or decimal128(38). An integer sum that does not fit is refused."""
    return Aggregate("sum", field)


def min_(field: str) -> Aggregate:
    """Return the least value of a field, of its type."""
    return Aggregate("min", field)


def max_(field: str) -> Aggregate:
    """Return the greatest value of a field, of its type."""
    return Aggregate("max", field)


def mean(field: str) -> Aggregate:
    """Return the mean of a field, float64."""
    return Aggregate("mean", field)


def last(field: str) -> Aggregate:
    """Return the value of a field in the latest row that has one, by event time, then by arrival."""
    return Aggregate("last", field)


def distinct(field: str, *, precision: int = 12) -> Aggregate:
    """Count the distinct values of a field approximately, int64: a HyperLogLog sketch of Apache DataSketches.

    Args:
        field: Text, numbers or times.
        precision: 7 to 21; the standard error is 1.04 / sqrt(2 ** precision). Small numbers are exact.
    """
    return Aggregate("distinct", field, (precision,))


def quantiles(field: str, *fractions: float, k: int = 200) -> Aggregate:
    """Return approximate quantiles of a field, a list of float64: a KLL sketch of Apache DataSketches.

    Args:
        field: Numbers.
        fractions: Each in [0, 1]; none: 0.5 and 0.99.
        k: 8 to 65535; at 200 ranks are wrong by 1.3 % at most.
    """
    return Aggregate("quantiles", field, (fractions or (0.5, 0.99), k))


class BoundAggregate(Protocol):
    """An aggregate of a field of some type. Its state is some columns."""

    stored: Sequence[pa.DataType]
    """Types of the columns of state."""
    type: pa.DataType
    """Of results."""

    def partial(self, groups: Groups, table: pa.Table, times: Times) -> list[pa.Array]:
        """Return the columns of state of rows, a row a group."""
        ...

    def merged(self, groups: Groups, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return columns of state merged by group; of several rows the earlier were there before."""
        ...

    def results(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the results."""
        ...
