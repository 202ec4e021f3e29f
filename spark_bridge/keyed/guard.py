"""The uses of state that Spark allows: which call works when, and what an error of state does.

An error of state closes the state, as Spark's server does: a handler that catches it gets no further, and the
transaction fails. The texts of errors were read from a running Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NoReturn

from pyspark.errors import PySparkRuntimeError

from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.consumer.keyed.variables import Current
from broadsheet.spark_bridge.keyed.state_values import StateValues

_CANNOT: Final = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID"


class ProcessorPhase(Enum):
    """The part of its life that a processor is in."""

    CREATED = "CREATED"
    INITIALIZED = "INITIALIZED"
    """Rows are handled."""
    DATA_PROCESSED = "DATA_PROCESSED"
    """Timers are handled."""
    TIMER_PROCESSED = "TIMER_PROCESSED"
    """It is closed."""


_HANDLING: Final = (ProcessorPhase.INITIALIZED, ProcessorPhase.DATA_PROCESSED)


class StateGuard:
    """Says whether state may be used now, and remembers the first error: none is survived."""

    def __init__(self, current: Current, mode: TimeMode) -> None:
        self.phase = ProcessorPhase.CREATED
        self.mode = mode
        self.error: PySparkRuntimeError | None = None
        self.current = current

    def fail(self, doing: str, error: str) -> NoReturn:
        """Close the state, and raise.

        Args:
            doing: What was called, as Spark calls it.
            error: Class and text.
        """
        self.error = PySparkRuntimeError(f"Error {doing}: {error}")
        raise self.error

    def require_open(self) -> None:
        """Refuse a call after an error."""
        if self.error is not None:
            raise PySparkRuntimeError(
                f"state is closed, because an earlier call failed: {self.error}"
            ) from self.error

    def require_key(self, doing: str, name: str) -> None:
        """Refuse a call while no key is handled."""
        self.require_open()
        if self.current.key is None:
            self.fail(
                doing,
                f"[INTERNAL_ERROR_TWS] Implicit key not found in state store for stateName={name} SQLSTATE: XX000",
            )

    def require_init(self, doing: str, operation: str) -> None:
        """Refuse a call outside `init`."""
        self.require_open()
        if self.phase is not ProcessorPhase.CREATED:
            self.fail(doing, self._wrong_phase(operation))

    def require_timers(self, doing: str, operation: str) -> None:
        """Refuse a call where there are no timers."""
        self.require_open()
        if self.mode is TimeMode.NONE:
            self.fail(
                doing,
                f"[{_CANNOT}_TIME_MODE] Failed to perform stateful processor operation={operation} with invalid "
                "timeMode=NoTime SQLSTATE: 42802",
            )
        if self.phase not in _HANDLING:
            self.fail(doing, self._wrong_phase(operation))
        self.require_key(doing, "timer")

    def _wrong_phase(self, operation: str) -> str:
        return (
            f"[{_CANNOT}_HANDLE_STATE] Failed to perform stateful processor operation={operation} with invalid "
            f"handle state={self.phase.value}. SQLSTATE: 42802"
        )


class VariableUse:
    """The checks of one variable's calls."""

    def __init__(self, guard: StateGuard, name: str) -> None:
        self._guard = guard
        self.name = name
        self.is_removed = False

    def check(self, doing: str, kind: str) -> None:
        """Refuse a call, in the terms of Spark."""
        guard = self._guard
        if guard.error is None and guard.current.key is not None and not self.is_removed:
            return
        guard.require_open()
        if self.is_removed:
            # The only error after which Spark goes on.
            raise PySparkRuntimeError(
                f"Error {doing}: {kind} state {self.name} is not initialized."
            )
        guard.require_key(doing, self.name)

    def fail(self, doing: str, error: str) -> NoReturn:
        """Close the state, and raise."""
        self._guard.fail(doing, error)

    def stored(self, doing: str, values: StateValues, value: Iterable[Any]) -> tuple[Any, ...]:
        """Return the fields of a value to store."""
        try:
            return values.stored(value)
        except PySparkRuntimeError as error:
            self._guard.fail(doing, str(error))
