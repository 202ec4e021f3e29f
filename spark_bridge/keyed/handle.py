"""Spark's handle, over the state of a keyed shard: what a `StatefulProcessor` calls.

Each call has the signature, the results and the errors of Spark's.

Source: PySpark's stateful_processor.py and its clients; the texts of errors were read from a running Spark 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import tzinfo
from operator import index
from typing import Any, Final, TypeVar

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState as SparkListState,
    MapState as SparkMapState,
    StatefulProcessorHandle,
    ValueState as SparkValueState,
)
from pyspark.sql.types import StructType

from broadsheet.consumer.keyed.processor import StateHandle
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.keyed.guard import StateGuard, VariableUse
from broadsheet.spark_bridge.keyed.losses import ValueLosses
from broadsheet.spark_bridge.keyed.schemas import (
    arrow_schema,
    as_nullable_throughout,
    state_struct,
)
from broadsheet.spark_bridge.keyed.state_values import StateValues
from broadsheet.spark_bridge.keyed.variables import HostedList, HostedMap, HostedValue, swallowing

T = TypeVar("T")


class HostedHandle(StatefulProcessorHandle):
    """The handle that a hosted processor gets."""

    def __init__(
        self, state: StateHandle, guard: StateGuard, *, zone: tzinfo, losses: ValueLosses
    ) -> None:
        # Spark's own would open a socket to a JVM.
        self._state = state
        self._guard = guard
        self._zone = zone
        self._losses = losses
        self._kinds: dict[str, str] = {}
        self._uses: dict[str, VariableUse] = {}

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> SparkValueState:
        """Declare a value for each key."""
        values, arrow = self._typed(stateName, schema, "value")
        ttl = self._checked("Value", "value", stateName, ttlDurationMs)
        declared = self._declared(
            "value", stateName, lambda: self._state.value(stateName, arrow, ttl_ms=ttl)
        )
        return HostedValue(self._use(stateName), declared, values)

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> SparkListState:
        """Declare a list for each key."""
        values, arrow = self._typed(stateName, schema, "list")
        ttl = self._checked("List", "list", stateName, ttlDurationMs)
        declared = self._declared(
            "list", stateName, lambda: self._state.list(stateName, arrow, ttl_ms=ttl)
        )
        return HostedList(self._use(stateName), declared, values)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> SparkMapState:
        """Declare a map for each key."""
        keys, arrow_keys = self._typed(stateName, userKeySchema, "map")
        values, arrow = self._typed(stateName, valueSchema, "map")
        ttl = self._checked("Map", "map", stateName, ttlDurationMs)
        declared = self._declared(
            "map", stateName, lambda: self._state.map(stateName, arrow_keys, arrow, ttl_ms=ttl)
        )
        return HostedMap(self._use(stateName), declared, keys, values)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the key that is handled."""
        expiry = _timestamp(expiryTimestampMs)
        self._guard.require_timers("register timer", "register_timer")
        self._state.timers.register(expiry)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the key that is handled; nothing if there is none."""
        expiry = _timestamp(expiryTimestampMs)
        self._guard.require_timers("deleting timer", "delete_timer")
        self._state.timers.delete(expiry)

    def listTimers(self) -> Iterator[int]:
        """Yield the expiries of the key's timers, ascending."""
        yield from swallowing(self._timers)

    def deleteIfExists(self, stateName: str) -> None:
        """Remove a variable, with all that keys have of it."""
        self._guard.require_init("deleting state", "delete_if_exists")
        self._state.forget(stateName)
        self._kinds.pop(stateName, None)
        if (use := self._uses.pop(stateName, None)) is not None:
            use.is_removed = True

    def _timers(self) -> Iterator[int]:
        self._guard.require_timers("listing timers", "list_timers")
        return iter(self._state.timers)

    def _typed(self, name: str, schema: StructType | str, kind: str) -> tuple[StateValues, Any]:
        self._guard.require_open()
        try:
            struct = state_struct(schema, name, kind)
            # A null never fails in Spark, whatever the schema says, so stored fields may all be null.
            arrow = as_nullable_throughout(arrow_schema(struct, name))
        except PySparkRuntimeError as error:
            self._guard.error = error
            raise
        return StateValues(struct, self._zone, self._losses.of(name)), arrow

    def _checked(self, kind: str, lower: str, name: str, ttl_ms: int | None) -> int | None:
        """Refuse a declaration that Spark refuses; return its TTL, None if there is none."""
        doing = f"initializing {lower} state"
        self._guard.require_init(doing, f"get_{lower}_state")
        if name.startswith("$"):
            self._guard.fail(
                doing,
                "[STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS] Failed to create column family with "
                f"unsupported starting character and name={name}. SQLSTATE: 42802",
            )
        known = self._kinds.get(name)
        if known == kind:
            self._guard.fail(doing, f"{kind} state {name} already exists")
        if known is not None:
            self._guard.fail(
                doing,
                "[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
                f"{name} has already been defined in the StatefulProcessor. SQLSTATE: 42802",
            )
        if ttl_ms is not None and (ttl_ms := index(ttl_ms)) != 0:
            self._check_ttl(doing, name, ttl_ms)
        self._kinds[name] = kind
        return ttl_ms or None

    def _check_ttl(self, doing: str, name: str, ttl_ms: int) -> None:
        if ttl_ms < 0:
            self._guard.fail(
                doing,
                "[STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be greater than zero for State "
                f"store operation=update on state={name}. SQLSTATE: 42802",
            )
        if self._guard.mode is not TimeMode.PROCESSING:
            self._guard.fail(
                doing,
                "[STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL for state="
                f"{name} in timeMode={_MODES[self._guard.mode]}, use TimeMode.ProcessingTime() instead. "
                "SQLSTATE: 42802",
            )

    def _declared(self, lower: str, name: str, declare: Callable[[], T]) -> T:
        try:
            return declare()
        except ValidationError as error:
            self._guard.fail(f"initializing {lower} state", f"[{_class_of(error)}] {error}")

    def _use(self, name: str) -> VariableUse:
        self._uses[name] = use = VariableUse(self._guard, name)
        return use


_MODES: Final = {
    TimeMode.NONE: "NoTime",
    TimeMode.PROCESSING: "ProcessingTime",
    TimeMode.EVENT: "EventTime",
}


def _class_of(error: ValidationError) -> str:
    """Return Spark's class for a declaration that stored state does not bear."""
    text = str(error)
    if "as it is stored, got a" in text:
        return "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"
    if "keys cannot change" in text:
        return "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"
    return "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION"


def _timestamp(expiry_ms: Any) -> int:
    """Return what protobuf makes of it: whole numbers of 64 bits, NumPy's too."""
    number = 0 if expiry_ms is None else index(expiry_ms)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"Value out of range: {number}")
    return number
