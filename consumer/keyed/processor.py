"""The code that a user of keyed state writes: a processor, and what it declares and uses.

class Counter(KeyedProcessor):
    def init(self, state: StateHandle) -> None:
        self.count = state.value("count", int)

    def handle_rows(self, key, rows, time):
        self.count.update((self.count.get() or 0) + len(rows))
        yield (*key, self.count.get())
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, TypeVar

from broadsheet.consumer.keyed.grouping import KeyRows
from broadsheet.consumer.keyed.registry import Registry
from broadsheet.consumer.keyed.row_types import Declared
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.txn_time import TimeMode, TxnTime
from broadsheet.consumer.keyed.variables import (
    Current,
    ListState,
    MapState,
    ValueState,
    Variable,
    VariableType,
)
from broadsheet.runtime.errors import ValidationError

_TIME_END: Final = 1 << 63
VariableT = TypeVar("VariableT", bound=Variable)


class KeyedProcessor(ABC):
    """Handles the rows and timers of one key at a time.

    One object serves a shard for as long as this process is its primary. Attributes that a method sets last until the
    end of the transaction: what must last longer is state, or is set by `init`.
    """

    @abstractmethod
    def init(self, state: StateHandle) -> None:
        """Declare the state. Called once, before the first transaction."""

    @abstractmethod
    def handle_rows(
        self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime
    ) -> Iterable[Any] | None:
        """Handle the rows of one key in one transaction; return or yield rows of output.

        Keys come in order, and the rows of a key in the order of arrival.

        Args:
            key: Its fields.
            rows: At least one.
            time: Of the transaction.
        """

    def handle_initial(
        self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime
    ) -> Iterable[Any] | None:
        """Handle the rows of a key that state begins with, before its first input; return or yield rows of output.

        Called in the shard's first transaction, if the application has initial rows, also for keys without input.

        Args:
            key: Its fields.
            rows: At least one.
            time: Of the transaction.
        """
        del key, rows, time
        return ()

    def handle_timer(
        self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime
    ) -> Iterable[Any] | None:
        """Handle a timer that is due; return or yield rows of output. The timer is removed after that.

        Timers fire after all rows of the transaction, in the order of (expiry, key).

        Args:
            key: Its fields.
            expiry_ms: The time with which it was registered, epoch milliseconds.
            time: Of the transaction.
        """
        del key, expiry_ms, time
        return ()

    def end_transaction(self) -> None:  # noqa: B027 - optional
        """Forget what is of the transaction alone. Called at the end of each one, also when a handler raised."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release what `init` opened. Called once, when this process gives the shard up."""


class Timers:
    """The timers of the key that is handled."""

    def __init__(self, store: KeyedStore, current: Current, mode: TimeMode) -> None:
        self._store = store
        self._current = current
        self._mode = mode

    def register(self, expiry_ms: int) -> None:
        """Register a timer; nothing if the key has one of this time.

        A time that has passed is due in this transaction, or, while timers fire, in the next, which begins at once.

        Args:
            expiry_ms: Epoch milliseconds, of the application's kind of time.

        Raises:
            ValidationError: the application has no time, or no key is handled.
        """
        self._store.add_timer(self._key(), _checked(expiry_ms))

    def delete(self, expiry_ms: int) -> None:
        """Remove a timer; nothing if there is none. One that is already due in this transaction still fires."""
        self._store.remove_timer(self._key(), _checked(expiry_ms))

    def __iter__(self) -> Iterator[int]:
        """Yield the expiries of the key's timers, ascending; of one that fires too."""
        return iter(self._store.expiries(self._key()))

    def _key(self) -> bytes:
        if self._mode is TimeMode.NONE:
            raise ValidationError(
                "timers", "expected an application with time='processing' or time='event'"
            )
        if self._current.key is None:
            raise ValidationError(
                "timers",
                "expected to be used while a key's rows or timers are handled: there is no key",
            )
        return self._current.key


def _checked(expiry_ms: int) -> int:
    # A truth value is an integer to Python, and no time.
    if type(expiry_ms) is not int or not -_TIME_END <= expiry_ms < _TIME_END:
        raise ValidationError(
            "expiry_ms", f"expected milliseconds as an integer of 64 bits, got {expiry_ms!r:.80}"
        )
    return expiry_ms


class StateHandle:
    """Declares the variables of a processor, in `init`."""

    def __init__(
        self,
        store: KeyedStore,
        registry: Registry,
        current: Current,
        mode: TimeMode,
        taken: Collection[str] = (),
    ) -> None:
        self._store = store
        self._taken = taken
        self._registry = registry
        self.current = current
        """The key that is handled."""
        self._is_open = True
        self._removed: set[str] = set()
        self.variables: dict[str, Variable] = {}
        """By name."""
        self.timers = Timers(store, current, mode)
        """Of the key that is handled."""

    def value(self, name: str, declared: Declared, *, ttl_ms: int | None = None) -> ValueState:
        """Declare a value for each key.

        Args:
            name: Unique in the processor.
            declared: The type of the value: `int`, a msgspec Struct, a dataclass, an Arrow schema, or a table schema
                such as "n int, at timestamp".
            ttl_ms: Time after a write in which the value expires, milliseconds; None: never.

        Raises:
            ValidationError: it cannot be declared so; the error names variable and field.
        """
        return self._declared(ValueState, name, declared, ttl_ms, None)

    def list(self, name: str, declared: Declared, *, ttl_ms: int | None = None) -> ListState:
        """Declare a list for each key; as `value`, of an element. Each element expires by itself."""
        return self._declared(ListState, name, declared, ttl_ms, None)

    def map(
        self, name: str, key: Declared, declared: Declared, *, ttl_ms: int | None = None
    ) -> MapState:
        """Declare a map for each key; as `value`, of an entry's key and value. Each entry expires by itself."""
        return self._declared(MapState, name, declared, ttl_ms, key)

    def remove(self, name: str) -> None:
        """Remove a variable that an earlier version of the processor declared, with all its rows.

        Nothing if there is none, so the call may stay. The rows go in the transactions that follow, within a budget. A
        variable that is neither declared nor removed keeps its rows, for a version that declares it again.

        Args:
            name: Of the variable. A version that does not remove it may declare the name for another one.

        Raises:
            ValidationError: it is declared, too, or this is not `init`.
        """
        if not self._is_open or name in self.variables:
            raise ValidationError(name, "expected to be removed in init, and not declared")
        self._registry.remove(name)
        self._removed.add(name)

    def forget(self, name: str) -> None:
        """Remove a variable as `remove` does, also one that is declared before or after: it begins empty then.

        For hosts of processors whose own interface allows that.
        """
        self._registry.remove(name)
        self.variables.pop(name, None)

    def close(self) -> None:
        """Take no more declarations."""
        self._is_open = False

    def _declared(
        self,
        make: Callable[[VariableType, KeyedStore, Current], VariableT],
        name: str,
        declared: Declared,
        ttl_ms: int | None,
        key: Declared | None,
    ) -> VariableT:
        if not self._is_open:
            raise ValidationError(name, "expected to be declared in init")
        if name in self._removed:
            # Each life of the shard would remove what the one before wrote.
            raise ValidationError(name, "expected not to be declared, because it is removed")
        if name in self.variables or name in self._taken:
            raise ValidationError(
                name, "expected a name that no other variable has, and no field of the key"
            )
        if ttl_ms is not None and ttl_ms <= 0:
            raise ValidationError(f"{name}.ttl_ms", f"expected a positive time, got {ttl_ms}")
        kind = getattr(make, "__name__", "")
        type_ = self._registry.register(name, kind, declared, ttl_ms, key)
        variable = make(type_, self._store, self.current)
        self.variables[name] = variable
        return variable
