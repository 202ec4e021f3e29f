"""Values that Spark would store as something else: they are counted, or refused."""

from __future__ import annotations

from typing import Any

import structlog
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import DataType

_log = structlog.get_logger()


class ValueLosses:
    """Counts values of state that are not stored as they were given, or refuses them."""

    def __init__(self, *, strict: bool) -> None:
        """Begin with none.

        Args:
            strict: Refuse such values.
        """
        self._strict = strict
        self.count = 0
        """Values that were stored as null, wrapped, or as text."""

    def of(self, variable: str) -> _LossesOf:
        """Return what a variable's converters tell."""
        return _LossesOf(self, variable)

    def add(self, field: str, value: Any, type_: DataType, stored: Any) -> Any:
        """Take note of a value; return what is stored.

        Raises:
            PySparkTypeError: such values are refused.
        """
        expected = type_.simpleString()
        if self._strict:
            raise PySparkTypeError(
                f"state {field}: expected {expected}, got {type(value).__name__} {value!r:.80}, which Spark stores as "
                f"{'null' if stored is None else repr(stored)}"
            )
        self.count += 1
        # Each time that there are twice as many, so that a processor which always does so does not fill the log.
        if self.count & (self.count - 1) == 0:
            _log.warning(
                "keyed.value_changed",
                field=field,
                expected=expected,
                got=type(value).__name__,
                stored=repr(stored)[:80],
                count=self.count,
            )
        return stored


class _LossesOf:
    def __init__(self, losses: ValueLosses, variable: str) -> None:
        self._losses = losses
        self._variable = variable

    def __call__(self, path: str, value: Any, type_: DataType, stored: Any) -> Any:
        return self._losses.add(f"{self._variable}.{path}", value, type_, stored)
