"""Optional part of a store: answers about keys, each time as of one commit.

The stores of keyed applications and of streams have it. All methods may be called on any thread, at any time; none
waits for transactions, and what one reads is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from broadsheet.wire.shard_pb2 import Checkpoint

if TYPE_CHECKING:
    import pyarrow as pa

KEYS_MAX: Final = 1_000
"""Keys of one look-up."""
PAGE_SIZE: Final = 1_000
"""Keys, or timers, of a page that is asked for without a number."""
PAGE_SIZE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class KeyedColumn:
    """A column of a table beside its key."""

    name: str
    kind: str
    """One of "value", "list" and "map" of a processor's state; "timers"; "result" of a stream's operator."""
    fields: pa.Schema
    """Of a value, of a list's element, of a map's value."""
    map_key: pa.Schema | None = None
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTableInfo:
    """A table that can be asked."""

    name: str
    key: pa.Schema
    columns: Sequence[KeyedColumn]
    schema: pa.Schema
    """The key's columns, and the others."""
    operator: str = ""
    """Of a stream: the operator, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedInfo:
    """The tables of a shard, and its time."""

    checkpoint: Checkpoint
    tables: Sequence[KeyedTableInfo]
    time: str
    """Kind of time of timers: "none", "processing" or "event"."""
    watermark_ms: int
    """Of the last transaction, Unix milliseconds; 0: none yet."""
    next_timer_ms: int | None
    """Unix milliseconds, at or before the time at which the next timer is due; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedPage:
    """Rows of a table as of one commit."""

    checkpoint: Checkpoint
    table: pa.Table
    key_numbers: Sequence[int] = ()
    """Of a look-up: which key each row is of."""
    cursor: bytes = b""
    """For the next page; empty: this is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedPageOrder:
    """The page that is asked for."""

    size: int = PAGE_SIZE
    """Keys, or timers, at most."""
    cursor: bytes = b""
    """Of the page before; empty: the first."""


FIRST_PAGE: Final = KeyedPageOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPrefix:
    """The beginning of the keys that are asked for."""

    fields: Sequence[Any] = ()
    """Leading fields; none: all keys."""
    text: str = ""
    """Beginning of the next field, which is text."""


ALL_KEYS: Final = KeyPrefix()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerRange:
    """The timers that are asked for."""

    key: Sequence[Any] | None = None
    """Of one key; None: of all."""
    from_ms: int | None = None
    """First time, Unix milliseconds; None: the earliest."""
    until_ms: int | None = None
    """Last time; None: the latest."""


ALL_TIMERS: Final = TimerRange()


class KeyedQueries(Protocol):
    """Answers about the keys of one shard.

    All methods raise a `ValidationError` for a table, column, key or cursor that does not fit, which names what was
    expected; and a `BoundExceededError` for a key whose state is too long for an answer.
    """

    def describe(self) -> KeyedInfo:
        """Return the tables."""
        ...

    def key_of(self, table: str) -> pa.Schema:
        """Return the fields of a table's key."""
        ...

    def get(
        self, table: str, keys: Sequence[Sequence[Any]], columns: Sequence[str] = ()
    ) -> KeyedPage:
        """Return the rows of some keys.

        Args:
            table: Its name; empty: the only one.
            keys: Their fields; 1 to `KEYS_MAX`.
            columns: Of the table; none: all.
        """
        ...

    def scan(
        self,
        table: str,
        prefix: KeyPrefix = ALL_KEYS,
        page: KeyedPageOrder = FIRST_PAGE,
        columns: Sequence[str] = (),
    ) -> KeyedPage:
        """Return a page of the keys that begin so."""
        ...

    def timers(
        self, table: str, wanted: TimerRange = ALL_TIMERS, page: KeyedPageOrder = FIRST_PAGE
    ) -> KeyedPage:
        """Return a page of timers: `due_ms`, and the fields of the key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCounts:
    """The state of a shard in numbers, as transactions left them."""

    rows: int
    """Of state and of its indexes, about."""
    state_bytes: int
    """Of these rows, about."""
    watermark_ms: int
    """Unix milliseconds; 0: none yet."""
    next_timer_ms: int | None
    """Unix milliseconds; None: there is none."""
    late_rows: int
    """Rows that were late in this life."""
    failed_calls: int = 0
    """Calls of handlers that failed and were set apart, in this life."""


@runtime_checkable
class KeyedQueryStore(Protocol):
    """A store that answers about keys."""

    @property
    def queries(self) -> KeyedQueries:
        """The answers.

        Raises:
            StoreError: the store is not restored, or is destroyed.
        """
        ...

    def counts(self) -> KeyedCounts:
        """Return the state in numbers, on any thread; in constant time.

        Raises:
            StoreError: the store is not restored, or is destroyed.
        """
        ...
