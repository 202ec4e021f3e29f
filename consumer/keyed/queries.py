"""Answers about keys: look-ups, pages of keys and of timers, each as of one commit and of bounded length.

    get     key ─► place ─► its rows                      no scan
    scan    prefix ─► of each group the places that begin so, from the cursor on
    timers  the index of due times, from the cursor on; the rows of state say which entries hold

Keys lie in the order of their groups, so a page of a prefix looks into each group. A cursor is the position that the
page ended at, behind the groups that the shard had: a later page sees what was committed by then, and no key twice that
stayed. Of a shard that was split meanwhile, or of another one, the pages would end early, without a word: such a cursor
is refused.

    ff ⋅ first group, 2 bytes ⋅ group behind the last, 2 bytes ⋅ position
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from broadsheet.consumer.errors import KeyElsewhereError
from broadsheet.consumer.keyed.key_codec import KeyCodec, from_sortable, sortable
from broadsheet.consumer.keyed.row_index import RowRange, RowSnapshot, after_prefix
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES, META, group_bytes, place_of
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.txn_time import TIMES, TimeMode, TimeState
from broadsheet.consumer.stores.keyed_queries import (
    ALL_KEYS,
    ALL_TIMERS,
    FIRST_PAGE,
    KEYS_MAX,
    PAGE_SIZE_MAX,
    KeyedInfo,
    KeyedPage,
    KeyedPageOrder,
    KeyedTableInfo,
    KeyPrefix,
    TimerRange,
)
from broadsheet.consumer.stores.state_tables import picked
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.wire.key_range import GROUPS, KeyRange

PAGE_BYTES: Final = 1 << 20
"""State of a page: it ends with the key with which it has so much."""
KEY_BYTES_MAX: Final = 4 << 20
"""State of one key in an answer."""
ENTRIES_MAX: Final = 10_000
"""Entries of the index of due times that a page looks at."""
DUE_MS: Final = "due_ms"
_TIME_BYTES: Final = 8
_TIME_MAX: Final = (1 << 63) - 1
_CURSOR: Final = b"\xff"
"""Begins cursors; those of earlier releases began with a group, which is less."""
_HEAD_BYTES: Final = len(_CURSOR) + 2 * GROUP_BYTES
_FAMILY_END: Final = group_bytes(GROUPS)
"""Behind the places of all groups."""


class AskedTable(Protocol):
    """A table whose rows can be found by key."""

    @property
    def info(self) -> KeyedTableInfo:
        """Its columns."""
        ...

    @property
    def codec(self) -> KeyCodec:
        """Of its keys."""
        ...

    @property
    def due_family(self) -> bytes:
        """The index that has its timers."""
        ...

    @property
    def is_due_early(self) -> bool:
        """True if an entry of that index may be before the time at which its row is due."""
        ...

    def behind(self, cursor: bytes) -> bytes:
        """Return the first position that a page behind a cursor looks at."""
        ...

    def rows_of(self, rows: RowSnapshot, place: bytes, columns: pa.Schema) -> pa.Table:
        """Return the rows of a key."""
        ...

    def page(
        self, rows: RowSnapshot, places: Sequence[RowRange], columns: pa.Schema, size: int
    ) -> tuple[pa.Table, bytes]:
        """Return the rows of a page, and its cursor; empty if nothing follows.

        Args:
            rows: To read.
            places: Ranges to look into, ascending.
            columns: Of the table.
            size: Keys at most.
        """
        ...

    def due_of(self, rows: RowSnapshot, place: bytes) -> list[int]:
        """Return when timers of a key are due, ascending."""
        ...

    def confirmed(
        self, rows: RowSnapshot, entries: Sequence[tuple[int, bytes]]
    ) -> list[tuple[int, bytes]]:
        """Return (due time, place) of the entries of the index that hold."""
        ...


class Meter:
    """Counts the bytes of state that an answer reads; the rows end where there are too many."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.is_exceeded = False

    @property
    def is_full(self) -> bool:
        """True if the page has enough."""
        return self.read_bytes >= PAGE_BYTES

    def items(
        self, rows: RowSnapshot, family: bytes, places: Iterable[RowRange]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place and suffix, row) of ranges of places."""
        for name, row in rows.items((family + begin, family + end) for begin, end in places):
            self.read_bytes += len(name) + len(row)
            if self.read_bytes > KEY_BYTES_MAX:
                self.is_exceeded = True
                return
            yield name[1:], row


def too_long(what: str) -> BoundExceededError:
    """Return the error of a key whose state does not fit into an answer."""
    return BoundExceededError(
        f"{what} has more than {KEY_BYTES_MAX >> 20} MiB of state, which no answer holds: ask for fewer columns of "
        'this key, or read the table with spark.read.format("shard_state")'
    )


def place_ranges(prefix: bytes, position: bytes) -> Iterator[RowRange]:
    """Yield where the keys are that begin so, from a position on.

    Args:
        prefix: Of the keys' bytes.
        position: First place of interest; empty: all are.
    """
    if not prefix:
        yield position, _FAMILY_END
        return
    first = int.from_bytes(position[:GROUP_BYTES])
    for group in range(first, GROUPS):
        begin = group_bytes(group) + prefix
        end = after_prefix(begin)
        begin = max(begin, position)
        if begin < end:
            yield begin, end


@dataclass(frozen=True, slots=True)
class StoreQueries:
    """Answers about the keys of one store."""

    store: KeyedStore
    tables: Mapping[str, AskedTable]
    mode: TimeMode

    def describe(self) -> KeyedInfo:
        """Return the tables."""
        with self.store.reading() as (rows, checkpoint):
            stored = rows.get(META + TIMES)
            times = (
                TimeState() if stored is None else msgspec.msgpack.decode(stored, type=TimeState)
            )
            families = {each.due_family for each in self.tables.values()}
            dues = [due for family in families if (due := _first_due(rows, family)) is not None]
            return KeyedInfo(
                checkpoint=checkpoint,
                tables=[each.info for each in self.tables.values()],
                time=self.mode.value,
                watermark_ms=times.watermark_ms,
                next_timer_ms=min(dues, default=None) if self.mode is not TimeMode.NONE else None,
            )

    def key_of(self, table: str) -> pa.Schema:
        """Return the fields of a table's key."""
        return self._table(table).codec.schema

    def get(
        self, table: str, keys: Sequence[Sequence[Any]], columns: Sequence[str] = ()
    ) -> KeyedPage:
        """Return the rows of some keys."""
        asked = self._table(table)
        schema = picked(asked.info.schema, columns)
        if not 1 <= len(keys) <= KEYS_MAX:
            raise ValidationError("keys", f"expected 1 to {KEYS_MAX:,} keys, got {len(keys):,}")
        places = [self._place(asked, key, f"keys[{number}]") for number, key in enumerate(keys)]
        found, numbers, size = [], list[int](), 0
        with self.store.reading() as (rows, checkpoint):
            for number, place in enumerate(places):
                # Again: a split or a merge may have come between, and the rows be those of other groups.
                self._require_owned(place, f"keys[{number}]")
                part = asked.rows_of(rows, place, schema)
                size += part.nbytes
                if size > KEY_BYTES_MAX:
                    raise too_long(f"keys[0] to keys[{number}]" if number else "keys[0]")
                found.append(part)
                numbers += [number] * len(part)
        return KeyedPage(checkpoint=checkpoint, table=pa.concat_tables(found), key_numbers=numbers)

    def scan(
        self,
        table: str,
        prefix: KeyPrefix = ALL_KEYS,
        page: KeyedPageOrder = FIRST_PAGE,
        columns: Sequence[str] = (),
    ) -> KeyedPage:
        """Return a page of the keys that begin so."""
        asked = self._table(table)
        schema = picked(asked.info.schema, columns)
        begin = asked.codec.encode_prefix(prefix.fields, prefix.text)
        # Taken before the rows are: the cursor of a page that a split meets is refused, as of the groups before.
        owned = self.store.owned
        position = _position(page, owned)
        if position and not _is_position(position, begin):
            raise _strange_cursor()
        places = [*place_ranges(begin, asked.behind(position) if position else b"")]
        with self.store.reading() as (rows, checkpoint):
            found, position = asked.page(rows, places, schema, _size(page))
        return KeyedPage(checkpoint=checkpoint, table=found, cursor=_cursor(position, owned))

    def timers(
        self, table: str, wanted: TimerRange = ALL_TIMERS, page: KeyedPageOrder = FIRST_PAGE
    ) -> KeyedPage:
        """Return a page of timers."""
        asked, size, owned = self._table(table), _size(page), self.store.owned
        position = _position(page, owned)
        bounds = (_time("from_ms", wanted.from_ms, -_TIME_MAX), _time("until_ms", wanted.until_ms))
        with self.store.reading() as (rows, checkpoint):
            if wanted.key is not None:
                place = self._place(asked, wanted.key, "key")
                due, position = _dues_of_key(rows, asked, place, position)
            else:
                due, position = _due_page(rows, asked, bounds, size, position)
        due = [each for each in due if bounds[0] <= each[0] <= bounds[1]]
        if len(due) > size and wanted.key is not None:
            due, position = due[:size], sortable(due[size - 1][0] + 1)
        table_of_due, cursor = _due_table(asked, due), _cursor(position, owned)
        return KeyedPage(checkpoint=checkpoint, table=table_of_due, cursor=cursor)

    def _place(self, asked: AskedTable, key: Sequence[Any], path: str) -> bytes:
        place = _place(asked, key, path)
        self._require_owned(place, path)
        return place

    def _require_owned(self, place: bytes, path: str) -> None:
        owned = self.store.owned
        if (group := int.from_bytes(place[:GROUP_BYTES])) not in owned:
            # "Not there" would be believed, and the key may have state where it is owned.
            raise KeyElsewhereError(
                path,
                f"expected a key of the groups {owned} of this shard, got one of group {group:04x}: ask the shard of "
                "its family that owns it",
            )

    def _table(self, name: str) -> AskedTable:
        if not name and len(self.tables) == 1:
            return next(iter(self.tables.values()))
        found = self.tables.get(name)
        if found is None:
            known = ", ".join(self.tables) or "none: no operator shows what it has open"
            raise ValidationError("table", f"expected one of {known}; got {name!r}")
        return found


def _place(asked: AskedTable, key: Sequence[Any], path: str) -> bytes:
    try:
        return place_of(asked.codec.encode(key))
    except ValidationError as error:
        inner = error.field_path.removeprefix("key").removeprefix(".")
        raise ValidationError(f"{path}.{inner}" if inner else path, error.problem) from error


def _size(page: KeyedPageOrder) -> int:
    if not 1 <= page.size <= PAGE_SIZE_MAX:
        raise ValidationError("page_size", f"expected 1 to {PAGE_SIZE_MAX:,}, got {page.size:,}")
    return page.size


def _cursor(position: bytes, owned: KeyRange) -> bytes:
    """Return the cursor of a page that ended at a position; empty: with the last."""
    if not position:
        return b""
    return _CURSOR + group_bytes(owned.begin) + group_bytes(owned.end) + position


def _position(page: KeyedPageOrder, owned: KeyRange) -> bytes:
    """Return the position of a page's cursor; empty: it has none.

    Raises:
        ValidationError: it is no cursor, or the shard does not have all groups of which it is.
    """
    cursor = page.cursor
    if not cursor:
        return b""
    begin, end = (int.from_bytes(cursor[at : at + GROUP_BYTES]) for at in (1, 1 + GROUP_BYTES))
    if not cursor.startswith(_CURSOR) or len(cursor) <= _HEAD_BYTES or not begin < end <= GROUPS:
        raise _strange_cursor()
    had = KeyRange(begin, end)
    if not owned.covers(had):
        raise ValidationError(
            "cursor",
            f"expected one of the groups {owned} of this shard, got one of {had}: it was split meanwhile, or the "
            "cursor is of another shard; begin again, and ask each shard of the family",
        )
    return cursor[_HEAD_BYTES:]


def _is_position(cursor: bytes, prefix: bytes) -> bool:
    """Tell whether a cursor is a place, with or without a suffix, of a key that begins so."""
    group = int.from_bytes(cursor[:GROUP_BYTES])
    return len(cursor) > GROUP_BYTES and group < GROUPS and cursor[GROUP_BYTES:].startswith(prefix)


def _time(name: str, time_ms: int | None, default: int = _TIME_MAX) -> int:
    """Return a bound of time, for which there are times before and behind it."""
    if time_ms is None:
        time_ms = default
    elif not -_TIME_MAX - 1 <= time_ms <= _TIME_MAX:
        raise ValidationError(name, f"expected Unix milliseconds of 64 bits, got {time_ms}")
    return max(-_TIME_MAX, min(time_ms, _TIME_MAX - 1))


def _strange_cursor() -> ValidationError:
    return ValidationError(
        "cursor", "expected that of an earlier page of the same question; leave it out to begin"
    )


# -- timers


def _first_due(rows: RowSnapshot, family: bytes) -> int | None:
    """Return the time of the first entry of an index, which is at or before the first that is due."""
    first = next(rows.items([(family, after_prefix(family))]), None)
    return None if first is None else from_sortable(first[0], len(family))


def _dues_of_key(
    rows: RowSnapshot, asked: AskedTable, place: bytes, position: bytes
) -> tuple[list[tuple[int, bytes]], bytes]:
    if position and len(position) != _TIME_BYTES:
        raise _strange_cursor()
    begin = from_sortable(position) if position else -_TIME_MAX
    return [(due, place) for due in asked.due_of(rows, place) if due >= begin], b""


def _due_page(
    rows: RowSnapshot, asked: AskedTable, bounds: tuple[int, int], size: int, position: bytes
) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return a page of (due time, place), and the position behind it."""
    family = asked.due_family
    end = family + sortable(bounds[1] + 1)
    begin = family if asked.is_due_early else family + sortable(bounds[0])
    if position:
        if len(position) < _TIME_BYTES:
            raise _strange_cursor()
        begin = family + position
    entries: list[tuple[int, bytes]] = []
    position = b""
    for looked, (entry, _) in enumerate(rows.items([(begin, end)])):
        if len(entries) >= size or looked >= ENTRIES_MAX:
            position = entry[len(family) :]
            break
        entries.append((from_sortable(entry, len(family)), entry[len(family) + _TIME_BYTES :]))
    return sorted(asked.confirmed(rows, entries)), position


def _due_table(asked: AskedTable, due: Sequence[tuple[int, bytes]]) -> pa.Table:
    codec = asked.codec
    keys = [codec.decode(place, GROUP_BYTES)[0] for _, place in due]
    columns = zip(*keys, strict=True) if keys else ([] for _ in codec.schema)
    arrays = [
        pa.array(list(column), type_)
        for column, type_ in zip(columns, codec.schema.types, strict=False)
    ]
    times = pa.array([time for time, _ in due], pa.int64())
    schema = pa.schema([pa.field(DUE_MS, pa.int64()), *codec.schema])
    return pa.table([times, *arrays], schema=schema)
