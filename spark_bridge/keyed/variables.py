"""Spark's three kinds of state variables, over those of a keyed shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState as SparkListState,
    MapState as SparkMapState,
    ValueState as SparkValueState,
)
from pyspark.sql.types import Row

from broadsheet.consumer.keyed.variables import ListState, MapState, ValueState
from broadsheet.spark_bridge.keyed.guard import VariableUse
from broadsheet.spark_bridge.keyed.state_values import StateValues

T = TypeVar("T")
_EMPTY = (
    "[ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the State Store Cannot write empty list "
    "values to State Store for StateName {name}. SQLSTATE: 42601"
)


def swallowing(begin: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yield what an iterator has; one that cannot begin is empty, and the transaction fails after it, as in Spark."""
    try:
        items = begin()
    except PySparkRuntimeError:
        return
    yield from items


class HostedValue(SparkValueState):
    """A value for each key."""

    def __init__(self, use: VariableUse, state: ValueState, values: StateValues) -> None:
        # Spark's own has a client of the JVM.
        self._use = use
        self._state = state
        self._values = values

    def exists(self) -> bool:
        """Tell whether the key has a value."""
        self._use.check("checking value state exists", "Value")
        return self._state.exists()

    def get(self) -> tuple[Any, ...] | None:
        """Return the value; None if there is none."""
        self._use.check("getting value state", "Value")
        fields = self._state.get()
        return None if fields is None else self._values.shown(fields)

    def update(self, newValue: Iterable[Any]) -> None:
        """Set the value."""
        fields = self._use.stored("updating value state", self._values, newValue)
        self._use.check("updating value state", "Value")
        self._state.update(fields)

    def clear(self) -> None:
        """Remove the value; nothing if there is none."""
        self._use.check("clearing value state", "Value")
        self._state.clear()


class HostedList(SparkListState):
    """A list for each key."""

    def __init__(self, use: VariableUse, state: ListState, values: StateValues) -> None:
        self._use = use
        self._state = state
        self._values = values

    def exists(self) -> bool:
        """Tell whether the key has any element."""
        # Spark's own text says value, of a list too.
        self._use.check("checking value state exists", "List")
        return self._state.exists()

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Yield the elements, as of the first step."""
        return swallowing(self._elements)

    def put(self, newState: Iterable[Iterable[Any]]) -> None:
        """Set the list."""
        self._state.put(self._stored(newState))

    def appendValue(self, newState: Iterable[Any]) -> None:
        """Add an element at the end."""
        fields = self._use.stored("updating value state", self._values, newState)
        self._use.check("updating value state", "List")
        self._state.append(fields)

    def appendList(self, newState: Iterable[Iterable[Any]]) -> None:
        """Add elements at the end."""
        self._state.extend(self._stored(newState))

    def clear(self) -> None:
        """Remove all elements."""
        self._use.check("clearing value state", "List")
        self._state.clear()

    def _elements(self) -> Iterator[tuple[Any, ...]]:
        self._use.check("getting list state", "List")
        return map(self._values.shown, list(self._state.get()))

    def _stored(self, elements: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
        doing = "updating value state"
        stored = [self._use.stored(doing, self._values, each) for each in elements]
        self._use.check(doing, "List")
        if not stored:
            self._use.fail(doing, _EMPTY.format(name=self._use.name))
        return stored


class HostedMap(SparkMapState):
    """A map for each key. Its entries are in the order of their keys."""

    def __init__(
        self, use: VariableUse, state: MapState, keys: StateValues, values: StateValues
    ) -> None:
        self._use = use
        self._state = state
        self._keys = keys
        self._values = values
        self._row = values.row

    def exists(self) -> bool:
        """Tell whether the key has any entry."""
        self._use.check("checking map state exists", "Map")
        return self._state.exists()

    def getValue(self, key: Iterable[Any]) -> Row | None:
        """Return the value of an entry; None if there is none."""
        doing = "getting value"
        fields = self._state.get(self._key(doing, key))
        return None if fields is None else self._row(self._values.shown(fields))

    def containsKey(self, key: Iterable[Any]) -> bool:
        """Tell whether there is an entry."""
        return self._state.contains(self._key("checking if map state contains key", key))

    def updateValue(self, key: Iterable[Any], value: Iterable[Any]) -> None:
        """Set an entry."""
        doing = "updating map state value"
        place = self._use.stored(doing, self._keys, key)
        fields = self._use.stored(doing, self._values, value)
        self._use.check(doing, "Map")
        self._state.put(place, fields)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Yield (key, value), as of the first step."""
        return swallowing(self._entries)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Yield the keys, as of the first step."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values, as of the first step, in the order of their keys."""
        return (value for _, value in self.iterator())

    def removeKey(self, key: Iterable[Any]) -> None:
        """Remove an entry; nothing if there is none."""
        self._state.remove(self._key("removing key from map state", key))

    def clear(self) -> None:
        """Remove all entries."""
        self._use.check("clearing map state", "Map")
        self._state.clear()

    def _entries(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        self._use.check("getting map state entries", "Map")
        shown_key, shown = self._keys.shown, self._values.shown
        return ((shown_key(key), shown(value)) for key, value in list(self._state.items()))

    def _key(self, doing: str, key: Iterable[Any]) -> tuple[Any, ...]:
        fields = self._use.stored(doing, self._keys, key)
        self._use.check(doing, "Map")
        return fields
