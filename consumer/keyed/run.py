"""The transactions of one keyed shard, between two restores of its checkpoint.

    begin       freeze the times
    add         rows arrive: late ones are set apart
    finish      rows by key ─► timers that are due ─► expired rows ─► times
                a timer that is due is fixed when its phase begins; many fire in pieces, a transaction each

Source: Spark's TransformWithStateExec (sequence, fixed list of due timers, removal after the handler's output).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import structlog
from numpy.typing import NDArray

from broadsheet.consumer.errors import KeyElsewhereError, StoreError
from broadsheet.consumer.keyed.absorption import KEY_TYPES
from broadsheet.consumer.keyed.event_times import Times, event_ms_of
from broadsheet.consumer.keyed.grouping import (
    GroupedRows,
    KeyRows,
    MakeRows,
    RowMaker,
    grouped,
    owned_rows,
    rows_by_key,
)
from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.processor import KeyedProcessor, StateHandle
from broadsheet.consumer.keyed.purge import PURGED_BUSY, PURGED_IDLE, Purge
from broadsheet.consumer.keyed.queries import StoreQueries
from broadsheet.consumer.keyed.registry import REGISTRY, REMOVAL, Registry, Removal
from broadsheet.consumer.keyed.state_queries import AskedState
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES, VARIABLE_BYTES, place_of
from broadsheet.consumer.keyed.state_table import STATE_TABLE, TIMERS_COLUMN, StateTable
from broadsheet.consumer.keyed.store import PURGED, KeyedStore
from broadsheet.consumer.keyed.ttl import SWEPT_BUSY, SWEPT_IDLE
from broadsheet.consumer.keyed.txn_time import (
    TIMES,
    Backlog,
    TimeMode,
    TimeState,
    TxnTime,
    begun,
    due_bound,
    merged,
    next_txn_after_ms,
    observe,
)
from broadsheet.consumer.keyed.variables import CommittedRows, Current
from broadsheet.consumer.keyed.watermark import WatermarkRules
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import ALL_KEYS, KeyRange, group_of
from broadsheet.wire.labels import KEY_BEGIN

_log = structlog.get_logger()
STORM_TIMERS: Final = 10_000
"""Timers that fire in one transaction."""
STORM_SECONDS: Final = 0.05
"""Time after which the rest of the timers is left to the next transaction."""
_ROWS_PER_EMIT: Final = 16_384
TIMER_MS: Final = "timer_ms"
"""Column of the side journal that has the expiry of a timer whose call failed."""
ERROR: Final = "error"
"""Column of the side journal that says why a call failed."""
_ERROR_CHARACTERS_MAX: Final = 2_000
LATE_REASON: Final = "late_reason"
"""Column that rows of the side journal have besides their own."""

Mask = NDArray[np.bool_]
Emit = Callable[[Sequence[Any]], None]
"""Takes rows of output."""
SetApart = Callable[[pa.Table], None]
"""Takes rows that are late, or too far in the future, with their reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSettings:
    """The parts that the transactions of an application have in common."""

    input_schema: pa.Schema
    key: KeyCodec
    mode: TimeMode
    event_time: str = ""
    """Column of event times; none: there is no watermark."""
    rules: WatermarkRules = field(default_factory=WatermarkRules)
    late: Literal["previous", "immediate"] = "previous"
    """Judge rows by the watermark of the transaction before, or by the transaction's own."""
    has_side_journal: bool = False
    sets_failed_apart: bool = False
    """The rows of a call that raises go to the side journal, and its changes are undone; else the shard fails."""
    make_rows: MakeRows | None = None
    """The form in which handlers get rows; None: tuples with attributes."""
    storm_timers: int = STORM_TIMERS
    storm_seconds: float = STORM_SECONDS


class KeyedRun:
    """Runs transactions of a processor over a store that was restored."""

    def __init__(
        self,
        processor: KeyedProcessor,
        settings: KeyedSettings,
        store: KeyedStore,
        *,
        journals: Sequence[str],
        clock: Clock,
        initial: pa.Table | None = None,
        owned: Callable[[], KeyRange] = lambda: ALL_KEYS,
    ) -> None:
        """Declare the processor's state.

        Args:
            processor: Not initialised.
            settings: Of the application.
            store: Restored.
            journals: The shard's sources.
            clock: For the batch time.
            initial: Rows, among whose columns are the key's, that state begins with.
            owned: Returns the groups of keys that the next transaction handles; rows of others are another shard's.

        Raises:
            ValidationError: a variable cannot be declared so.
        """
        self._processor = processor
        self._settings = settings
        self._store = store
        self._journals = journals
        self._clock = clock
        self._make_rows = settings.make_rows or RowMaker(settings.input_schema.names)
        self._current = Current()
        stored = store.meta(TIMES)
        self._times = (
            TimeState() if stored is None else msgspec.msgpack.decode(stored, type=TimeState)
        )
        self._initial = initial if stored is None else None
        self._owned_now = owned
        self._owned = store.owned = owned()
        self._require_range()
        self._purge = Purge.of(store.meta(PURGED), self._owned)
        self._tables: list[pa.Table] = []
        self.late_rows = 0
        """Rows that were not handled because they were late, in this life."""
        self.next_due_ms: int | None = None
        """The earliest timer, as of the last transaction."""
        self.failed_calls = 0
        """Calls of handlers that failed and were set apart, in this life."""
        self._has_expired = False
        self._require_key()
        registry = Registry(store.meta(REGISTRY), store.meta(REMOVAL))
        taken = (*settings.key.schema.names, TIMERS_COLUMN)
        self._handle = StateHandle(store, registry, self._current, settings.mode, taken)
        processor.init(self._handle)
        self._handle.close()
        self._by_suffix = {each.type.suffix: each for each in self._handle.variables.values()}
        if registry.has_changed:
            store.put_meta(REGISTRY, registry.encode())
            store.put_meta(REMOVAL, registry.removal.encode())
        self._removal = registry.removal
        self._attributes = dict(vars(processor))

    def _require_range(self) -> None:
        """Refuse a range with keys whose rows another shard has: their state would be empty, and their input half read.

        Raises:
            ValidationError: the state was made for a range that does not cover this one.
        """
        kept = Purge.kept_range(self._store.meta(PURGED))
        if not kept.covers(self._owned):
            raise ValidationError(
                f"labels[{KEY_BEGIN}]",
                f"expected a range in {kept}, whose rows the state has, got {self._owned}: a shard of this id owned "
                "those alone before. Apply that range, with the shards of its family that have the others, and merge "
                "them; or give the new shard another id, with which it begins without state",
            )

    def _require_key(self) -> None:
        """Refuse keys of other types than those of the stored rows, which could not be read."""
        wanted = ", ".join(map(str, self._settings.key.schema.types))
        known = self._store.meta(KEY_TYPES)
        if known is None:
            self._store.put_meta(KEY_TYPES, wanted.encode())
        elif known.decode() != wanted:
            raise ValidationError(
                "key",
                f"expected the types {known.decode()}, as state is stored, got {wanted}: keys cannot change",
            )

    # -- a transaction

    def begin(self) -> None:
        """Begin a transaction: freeze its times."""
        self._times = begun(self._times, self._settings.rules, self._journals, self._now_ms())
        self._current.batch_ms = self._times.batch_ms
        self._current.transaction += 1
        # A transaction has one range, though the spec may change while it runs.
        self._owned = self._store.owned = self._owned_now()
        purge = self._purge.of_range(self._store.kept)
        if purge is not self._purge:
            # Also if nothing is to be removed: what is taken in from now on may be to be removed later.
            self._purge = purge
            self._store.put_meta(PURGED, purge.encode())
        self._tables = []

    def add(self, table: pa.Table, journal: str, set_apart: SetApart) -> None:
        """Add rows of a source.

        Args:
            table: With the columns of the input.
            journal: The source.
            set_apart: Takes those that are not to be handled.
        """
        if not len(table):
            return
        if not self._settings.event_time:
            self._tables.append(self._of_own_keys(table))
            return
        times = _EventTimes.of(table, self._settings.event_time)
        self._observe(times, journal)
        if not self._owned.is_all:
            # Behind the watermark, which is of all keys, as in one shard that has them all.
            is_owned = owned_rows(table, self._settings.key, self._owned)
            table, times = table.filter(pa.array(is_owned)), times.pick(is_owned)
        self._tables.append(self._timely(table, times, journal, set_apart))

    @property
    def rows(self) -> int:
        """Rows that the transaction is to handle so far."""
        return sum(map(len, self._tables))

    @property
    def input_bytes(self) -> int:
        """Memory of these rows."""
        return sum(table.nbytes for table in self._tables)

    def finish(self, emit: Emit, set_apart: SetApart = lambda _: None) -> None:
        """Handle the rows and what is due; the changes are in the store then, to be committed.

        Args:
            emit: Takes the output, in order.
            set_apart: Takes the rows of calls that failed, where the settings say so.
        """
        output = _Output(emit)
        had_rows = bool(self.rows)
        try:
            self._handle_rows(output, set_apart)
            self._fire_timers(output, set_apart)
        finally:
            self._current.key = None
            attributes = vars(self._processor)
            attributes.clear()
            attributes.update(self._attributes)
            self._processor.end_transaction()
        output.flush()
        budget = SWEPT_BUSY if had_rows else SWEPT_IDLE
        self._sweep(budget)
        self._remove_rows(budget)
        self._remove_foreign(PURGED_BUSY if had_rows else PURGED_IDLE)
        self._absorb(budget)
        self._store.put_meta(TIMES, msgspec.msgpack.encode(self._times))

    def next_txn_after(self) -> float | None:
        """Return after how many seconds a transaction is due though no row comes; None: only with rows."""
        settings = self._settings
        if self._initial is not None or self._times.storm_ms is not None:
            return 0.0
        next_due = None if settings.mode is TimeMode.NONE else self._store.next_timer_ms()
        self.next_due_ms = next_due
        absorption = self._store.absorption
        removes = bool(self._removal.numbers)
        removes = removes or (absorption is not None and absorption.has_work)
        backlog = Backlog(
            next_due, has_expired=self._has_expired or removes, is_purging=not self._purge.is_over
        )
        after = next_txn_after_ms(
            self._times, settings.mode, settings.rules, backlog, self._now_ms()
        )
        return None if after is None else after / 1000

    @property
    def watermark_ms(self) -> int:
        """The watermark of the last transaction, Unix milliseconds."""
        return self._times.watermark_ms

    def close(self) -> None:
        """Close the processor."""
        self._processor.close()

    # -- queries

    def committed(self, name: str, key: Sequence[Any]) -> Any:
        """Return a variable of a key as of the last durable commit: a value, a list or a dict. On any thread.

        Raises:
            ValidationError: there is no such variable, or the key is of another type.
            KeyElsewhereError: another shard owns the key.
        """
        variable = self._handle.variables.get(name)
        if variable is None:
            known = ", ".join(self._handle.variables) or "none"
            raise ValidationError("name", f"expected one of {known}; got {name!r}")
        current = Current()
        current.key = self._settings.key.encode(key)
        owned = self._owned_now()
        if group_of(current.key) not in owned:
            # What is left of it here is of before a split.
            raise KeyElsewhereError(
                "key",
                f"expected one of the groups {owned} of this shard, got group {group_of(current.key):04x}: ask the "
                "shard of its family that owns it",
            )
        current.place = place_of(current.key)
        current.batch_ms = self._now_ms()
        return variable.over(CommittedRows(self._store), current).committed()

    @property
    def state_table(self) -> StateTable:
        """The state as a table."""
        return StateTable(self._settings.key, self._handle.variables)

    @cached_property
    def queries(self) -> StoreQueries:
        """Answers about keys, on any thread."""
        table = AskedState(self.state_table, self._now_ms)
        return StoreQueries(self._store, {STATE_TABLE: table}, self._settings.mode)

    # -- the phases

    def _of_own_keys(self, table: pa.Table) -> pa.Table:
        if self._owned.is_all:
            return table
        return table.filter(pa.array(owned_rows(table, self._settings.key, self._owned)))

    def _is_future(self, times: _EventTimes) -> Mask:
        limit = self._times.batch_ms + self._settings.rules.max_future_ms
        return ~times.is_null & (times.event_ms > limit)

    def _observe(self, times: _EventTimes, journal: str) -> None:
        """Note the latest event time of a source."""
        moving = times.event_ms[~times.is_null & ~self._is_future(times)]
        observe(self._times, journal, int(moving.max()) if len(moving) else None)

    def _timely(
        self, table: pa.Table, of_rows: _EventTimes, journal: str, set_apart: SetApart
    ) -> pa.Table:
        """Return the rows that are to be handled."""
        settings, times = self._settings, self._times
        event_ms, is_null = of_rows.event_ms, of_rows.is_null
        is_future = self._is_future(of_rows)
        bound = times.watermark_ms if settings.late == "immediate" else times.late_ms
        is_late = np.zeros(len(table), np.bool_)
        if settings.mode is TimeMode.EVENT:
            is_late = ~is_null & (event_ms <= bound)
            self._count_late(int(np.count_nonzero(is_late)), journal, bound)
        # Without a side journal, a row of the future is handled: it only does not move the watermark.
        is_apart = is_late | is_future if settings.has_side_journal else is_late
        if not is_apart.any():
            return table
        apart = table.filter(pa.array(is_apart))
        reasons = np.where(is_late[is_apart], "late", "future")
        set_apart(apart.append_column(LATE_REASON, pa.array(reasons, pa.string())))
        return table.filter(pa.array(~is_apart))

    def _count_late(self, rows: int, journal: str, bound_ms: int) -> None:
        before, self.late_rows = self.late_rows, self.late_rows + rows
        # Each time that there are twice as many, so that a source which is always late does not fill the log.
        if self.late_rows.bit_length() > before.bit_length():
            _log.warning(
                "keyed.rows_late",
                rows=self.late_rows,
                journal=journal,
                watermark_ms=bound_ms,
                kept=self._settings.has_side_journal,
            )

    def _handle_rows(self, output: _Output, set_apart: SetApart) -> None:
        tables, self._tables = self._tables, []
        initial, self._initial = self._initial, None
        rows = self._grouped(tables)
        if initial is not None:
            initial = self._of_own_keys(initial)
            self._handle_initial(grouped(initial, self._settings.key), rows, output, set_apart)
            return
        if rows is None:
            return
        places = [place_of(key) for key in rows.keys]
        self._store.prefetch(places)
        self._store.count_rows(places, rows.ends)
        time, current = self._time(), self._current
        by_key = rows_by_key(rows, self._make_rows)
        for at, (place, (key, value, of_key)) in enumerate(zip(places, by_key, strict=True)):
            current.key, current.place = key, place
            if self._settings.sets_failed_apart:
                self._handle_guarded(output, value, of_key, set_apart)
            else:
                output.take(self._processor.handle_rows(value, of_key, time))
            if not at:
                # In a life's first transaction nothing tells before what a handler reads, and a fail-over waits for it.
                self._store.prefetch_learned(places[1:])

    def _handle_guarded(
        self, output: _Output, key: tuple[Any, ...], rows: KeyRows, set_apart: SetApart
    ) -> None:
        call = partial(self._processor.handle_rows, key, rows, self._time())
        if (error := self._guarded(output, self._current.place, call)) is not None:
            set_apart(_failed(rows.to_arrow(), error))

    def _guarded(
        self, output: _Output, place: bytes, call: Callable[[], Iterable[Any] | None]
    ) -> Exception | None:
        """Call a handler for a key; if it raises, undo what it changed, and return the error."""
        try:
            with self._store.savepoint(place):
                rows = list(call() or ())
        except (StoreError, MemoryError):
            raise  # No key is to blame.
        except Exception as error:
            self._count_failed(error)
            return error
        output.take(rows)
        return None

    def _count_failed(self, error: Exception) -> None:
        self.failed_calls += 1
        # Each time that there are twice as many; each is in the side journal.
        if self.failed_calls.bit_count() == 1:
            _log.warning("keyed.calls_failed", calls=self.failed_calls, error=error_text(error))

    def _failed_timer(self, key: Sequence[Any], expiry_ms: int, error: Exception) -> pa.Table:
        """Return a row with the columns of the input, of which only those of the key have a value."""
        schema = self._settings.input_schema
        values = dict(zip(self._settings.key.schema.names, key, strict=True))
        columns = [pa.array([values.get(field.name)], field.type) for field in schema]
        row = pa.table(columns, names=schema.names)
        return _failed(row.append_column(TIMER_MS, pa.array([expiry_ms])), error)

    def _grouped(self, tables: Sequence[pa.Table]) -> GroupedRows | None:
        if not any(map(len, tables)):
            return None
        return grouped(pa.concat_tables(tables), self._settings.key)

    def _handle_initial(
        self,
        initial: GroupedRows,
        rows: GroupedRows | None,
        output: _Output,
        set_apart: SetApart,
    ) -> None:
        """Handle the rows that state begins with; of each key before its input."""
        processor, time, current = self._processor, self._time(), self._current
        # Initial rows have columns of their own.
        make_rows = self._settings.make_rows or RowMaker(initial.table.schema.names)
        seeds = {key: (value, seed) for key, value, seed in rows_by_key(initial, make_rows)}
        inputs: dict[bytes, tuple[tuple[Any, ...], KeyRows]] = {}
        if rows is not None:
            by_key = rows_by_key(rows, self._make_rows)
            inputs = {key: (value, of_key) for key, value, of_key in by_key}
        for key in sorted(seeds.keys() | inputs.keys()):
            current.key, current.place = key, place_of(key)
            if key in seeds:
                output.take(processor.handle_initial(*seeds[key], time))
            if key in inputs and self._settings.sets_failed_apart:
                self._handle_guarded(output, *inputs[key], set_apart)
            elif key in inputs:
                output.take(processor.handle_rows(*inputs[key], time))

    def _fire_timers(self, output: _Output, set_apart: SetApart) -> None:
        bound = due_bound(self._times, self._settings.mode)
        if bound is None:
            return
        settings, time, current = self._settings, self._time(), self._current
        end = self._clock.monotonic_seconds() + settings.storm_seconds
        self._times.storm_ms = None
        timers = chain.from_iterable(self._store.due_timers(bound))
        for fired, (expiry, key) in enumerate(timers):
            is_over = fired and self._clock.monotonic_seconds() >= end
            if is_over or fired == settings.storm_timers:
                self._times.storm_ms, self.next_due_ms = bound, expiry
                break
            current.key, current.place = key, place_of(key)
            value, _ = settings.key.decode(key)
            call = partial(self._processor.handle_timer, value, expiry, time)
            if not settings.sets_failed_apart:
                output.take(call())
            elif (error := self._guarded(output, current.place, call)) is not None:
                set_apart(self._failed_timer(value, expiry, error))
            # Also if the handler registered the same time again.
            self._store.remove_timer(key, expiry)

    def _sweep(self, budget: int) -> None:
        """Remove rows that are expired, as far as the budget goes."""
        entries, self._has_expired = self._store.filed_until(self._times.batch_ms, budget)
        for time_ms, rest in entries:
            _, end = self._settings.key.decode(rest, GROUP_BYTES)
            place, suffix = rest[:end], rest[end:]
            if not self._store.take_filed(time_ms, place, suffix):
                continue
            variable = self._by_suffix.get(suffix[:VARIABLE_BYTES])
            # Rows of a variable that is declared no more stay: only its declaration could tell which elements expired.
            if variable is not None:
                variable.expire(place, suffix)

    def _remove_rows(self, budget: int) -> None:
        """Remove rows of variables that are removed, as far as the budget goes."""
        removal = self._removal
        if not removal.numbers:
            return
        found, suffixes = self._store.stored_rows(removal.begin, budget), removal.suffixes
        for name, _ in found:
            _, end = self._settings.key.decode(name, GROUP_BYTES)
            if name[end : end + VARIABLE_BYTES] in suffixes:
                self._store.put(name[:end], name[end:], None)
        is_over = len(found) < budget
        self._removal = Removal() if is_over else Removal(removal.numbers, found[-1][0] + b"\x00")
        self._store.put_meta(REMOVAL, self._removal.encode())

    def _remove_foreign(self, budget: int) -> None:
        """Remove rows of keys that a split has given away, as far as the budget goes."""
        purge = self._purge
        if purge.is_over:
            return
        found, behind = self._store.foreign_names(purge.begin, budget)
        for name in found:
            end = self._key_end(name)
            self._store.put(name[1:end], name[end:], None)
        self._purge = purge.advanced(behind)
        self._store.put_meta(PURGED, self._purge.encode())

    def _absorb(self, budget: int) -> None:
        """Take in rows of a shard whose keys a merge is to give to this one, as far as the budget goes."""
        absorption = self._store.absorption
        if absorption is None or absorption.is_complete:
            return
        is_complete = absorption.step(self._store, self._key_end, budget)
        if is_complete and absorption.times is not None:
            self._times = merged(self._times, absorption.times)

    def _key_end(self, name: bytes) -> int:
        """Return where the key ends in the name of a row."""
        _, end = self._settings.key.decode(name, 1 + GROUP_BYTES)
        return end

    def _time(self) -> TxnTime:
        watermark = self._times.watermark_ms if self._settings.event_time else -1
        return TxnTime(self._times.batch_ms, watermark)

    def _now_ms(self) -> int:
        return int(self._clock.wall_seconds() * 1000)


@dataclass(frozen=True, slots=True)
class _EventTimes:
    """Event times of some rows."""

    event_ms: Times
    """Epoch milliseconds."""
    is_null: Mask

    @classmethod
    def of(cls, table: pa.Table, column: str) -> _EventTimes:
        return cls(*event_ms_of(table.column(column)))

    def pick(self, kept: Mask) -> _EventTimes:
        return _EventTimes(self.event_ms[kept], self.is_null[kept])


class _Output:
    """Rows of output, passed on in runs."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._rows: list[Any] = []

    def take(self, rows: Iterable[Any] | None) -> None:
        """Take what a handler returned, all of it: a generator runs while its key is the current one."""
        if rows is None:
            return
        self._rows.extend(rows)
        if len(self._rows) >= _ROWS_PER_EMIT:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._emit(rows)


def error_text(error: Exception) -> str:
    """Return what an error says of itself."""
    return f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS_MAX]


def _failed(rows: pa.Table, error: Exception) -> pa.Table:
    """Return the rows of a call that failed as the side journal has them."""
    reasons = pa.array(["failed"] * len(rows), pa.string())
    errors = pa.array([error_text(error)] * len(rows), pa.string())
    return rows.append_column(LATE_REASON, reasons).append_column(ERROR, errors)
