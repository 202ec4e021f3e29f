"""Record store in a DynamoDB table: our own, or another system's.

DynamoDB does not know which workers live: observers watch the counters that holders move, or the wall clock in a table
of vmware-go-kcl. A write changes only the attributes that differ, on condition that the layout's guards are as they
were read; other programs' attributes stay.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from broadsheet.leases.errors import InvalidStateError, UnreadableLeaseError
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Version, Versioned
from broadsheet.leases.store import (
    ForeignLeader,
    OnUnreadable,
    WritesLeaseLength,
    log_unreadable,
    reading_row,
)
from broadsheet.leases.stores.dynamodb.expressions import (
    AttributeChanges,
    changes_between,
    condition_of,
    creation_of,
    update_of,
)
from broadsheet.leases.stores.dynamodb.kcl_java import (
    LEADER_KEYS,
    STATE_KEY,
    KclJavaLayout,
    leader_in,
    state_table,
)
from broadsheet.leases.stores.dynamodb.layout import EPOCH, REV, Layout, NativeLayout
from broadsheet.leases.stores.dynamodb.table import (
    USABLE,
    ConditionRefusedError,
    LeaseTable,
    TableKeys,
    TableOptions,
)
from broadsheet.leases.stores.dynamodb.values import (
    Item,
    Value,
    from_plain,
    number_of,
    to_plain,
    value_of,
)
from broadsheet.leases.stores.dynamodb.vmware_go import NANOSECONDS
from broadsheet.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

_FIRST_REV_BITS: Final = 52
"""A row starts at a random rev, so that a recreated row is not mistaken for the deleted one."""

KNOWN_ROWS_MAX: Final = 100_000
"""Rows remembered, the last read ones; a row is about 1 KB, and applications have fewer shards."""


class DynamoRecordStore:
    """Implements `broadsheet.leases.store.RecordStore` over one table."""

    def __init__(
        self,
        client: DynamoDBClient,
        table_name: str,
        *,
        layout: Layout | None = None,
        options: TableOptions | None = None,
        page_rows: int | None = None,
        consistent_scans: bool = True,
        scan_segments: int = 1,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Describe the store; DynamoDB is not asked yet.

        Args:
            client: Of boto3; stays the caller's. Best one that does not try again by itself
                (`broadsheet.leases.open_dynamodb_client`): then throttling is told from doubt.
            table_name: Of the table; the other systems name it like the application.
            layout: Of its rows; None: our own.
            options: How the table is made, if it is.
            page_rows: Rows that a scan reads at a time; None: as many as DynamoDB returns, up to 1 MB.
            consistent_scans: Whether scans see every write before them; if not, they cost half.
            scan_segments: Parts of the table that a scan reads at once: for tables of many pages.
            clock: Its wall clock writes the moments of tables that have them.
            sleep: Waits, for a number of seconds.
        """
        self._layout: Layout = layout or NativeLayout()
        self._options = options or TableOptions()
        self._page_rows = page_rows
        self._consistent_scans = consistent_scans
        self._scan_segments = scan_segments
        self._clock = clock or SystemClock()
        keys = TableKeys(
            key_name=self._layout.key_name,
            owner_name=self._layout.owner_name,
            owner_index=self._layout.owner_index,
        )
        self._table = LeaseTable(client, table_name, keys, sleep=sleep)
        self._state = LeaseTable(
            client,
            state_table(table_name),
            TableKeys(key_name=STATE_KEY, owner_name="", owner_index=None),
            sleep=sleep,
        )
        self._known: dict[str, Item] = {}

    @property
    def tells_who_lives(self) -> bool:
        """False, because a row does not show whether its owner lives."""
        return False

    def lease_lasts(self, seconds: float) -> None:
        """Set the length of leases for the worker that writes, in layouts whose rows hold their end.

        Raises:
            ValidationError: the layout was made with another length.
        """
        if isinstance(self._layout, WritesLeaseLength):
            self._layout.lease_lasts(seconds)

    async def exists(self) -> bool:
        """Return whether the table exists and is active."""
        return await self._table.status() in USABLE

    async def create_store(self) -> bool:
        """Create the table, and wait until it is active; return False if it exists, or another process creates it."""
        return await self._table.create(self._options)

    async def delete_store(self) -> None:
        """Delete the table, and wait until it is gone."""
        await self._table.delete()

    async def get(self, key: str) -> Versioned | None:
        """Return the present record."""
        item = await self._table.read(key)
        return None if item is None else self._read(key, item)

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records in order; all are read before the first is yielded.

        Records of one owner are found by the index, where the layout has one, and read again; the index shows a change
        of owner a moment late.
        """
        rows = await self._rows(owner)
        for key in sorted(rows):
            try:
                found = self._read_or_none(key, rows[key])
            except UnreadableLeaseError as error:
                on_unreadable(error)
                continue
            if found is not None and owner in (None, found.record.owner):
                yield found

    async def create(self, record: LeaseRecord) -> Versioned:
        """Create a row."""
        layout = self._layout
        record = layout.stamped(None, record, now_nanoseconds=self._now_nanoseconds())
        row = layout.row(record) | layout.own(record)
        row[REV] = value_of(secrets.randbits(_FIRST_REV_BITS))
        try:
            item = await self._table.update(record.key, creation_of(row, key_name=layout.key_name))
        except ConditionRefusedError as refused:
            raise self._conflict(record.key, refused) from refused
        return self._read(record.key, item)

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Change a row."""
        key, before = record.key, expected.record
        fence, guards = _parsed(expected.version)
        if fence != expected.fence:
            raise RecordConflictError(key, await self.get(key))
        record = self._layout.stamped(before, record, now_nanoseconds=self._now_nanoseconds())
        changes = self._changes(before, record, guards)
        update = update_of(changes, key_name=self._layout.key_name, guards=guards)
        try:
            item = await self._table.update(key, update)
        except ConditionRefusedError as refused:
            raise self._conflict(key, refused) from refused
        return self._read(key, item)

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Delete a row."""
        if expected is None:
            return await self._table.remove(key, {})
        fence, guards = _parsed(expected.version)
        if fence != expected.fence:
            raise RecordConflictError(key, await self.get(key))
        try:
            return await self._table.remove(key, condition_of(self._layout.key_name, guards))
        except ConditionRefusedError as refused:
            if refused.item is None:
                return False
            raise self._conflict(key, refused) from refused

    async def join(self, worker: str) -> None:
        """Do nothing, because workers show by their writes that they live."""

    async def foreign_leaders(self) -> tuple[ForeignLeader, ...]:
        """Return the leaders of Java workers of version 3, from the lease table (3.5) and from the separate table."""
        if not isinstance(self._layout, KclJavaLayout):
            return ()
        rows = await self._table.read_all(LEADER_KEYS)
        with suppress(InvalidStateError):  # There is no separate table, or it was deleted.
            rows += await self._state.read_all(LEADER_KEYS)
        found = [leader_in(row) for row in rows]
        return tuple(leader for leader in found if leader is not None)

    async def _rows(self, owner: str | None) -> dict[str, Item]:
        name = self._layout.key_name
        keys = None
        if owner is not None:
            keys = await self._table.keys_of(owner, rows_max=self._page_rows)
        if keys is not None:
            return {str(row[name]["S"]): row for row in await self._table.read_all(keys)}
        rows = await self._table.scan(
            rows_max=self._page_rows,
            consistent=self._consistent_scans,
            segments=self._scan_segments,
        )
        return {str(row[name]["S"]): row for row in rows}

    def _changes(
        self, before: LeaseRecord, after: LeaseRecord, guards: dict[str, Value | None]
    ) -> AttributeChanges:
        layout = self._layout
        changes = changes_between(layout.row(before), layout.row(after))
        own = layout.own(after) if after.counter != before.counter else {}
        return AttributeChanges(
            set={**changes.set, **own, REV: _next_rev(guards[REV])},
            add=changes.add,
            remove=changes.remove,
        )

    def _read(self, key: str, item: Item) -> Versioned:
        found = self._read_or_none(key, item)
        if found is None:
            raise InvalidStateError(
                f"row {key} holds another kind of data than a lease; choose another key"
            )
        return found

    def _read_or_none(self, key: str, item: Item) -> Versioned | None:
        """Return the record in a row, and remember the row for the epoch of its next reading."""
        with reading_row(key):
            record = self._layout.read(item, self._known.get(key))
        if record is None:
            return None
        if key not in self._known or EPOCH in item:
            self._known.pop(key, None)
            self._known[key] = item
            if len(self._known) > KNOWN_ROWS_MAX:
                del self._known[next(iter(self._known))]
        fence = 0 if record.holder is None else record.epoch + 1
        guards = {name: item.get(name) for name in self._layout.guards}
        return Versioned(record=record, version=_version(fence, guards), fence=fence)

    def _conflict(self, key: str, refused: ConditionRefusedError) -> RecordConflictError:
        current = None if refused.item is None else self._read(key, refused.item)
        return RecordConflictError(key, current)

    def _now_nanoseconds(self) -> int:
        return int(self._clock.wall_seconds() * NANOSECONDS)


def _version(fence: int, guards: dict[str, Value | None]) -> Version:
    plain = {name: None if value is None else to_plain(value) for name, value in guards.items()}
    return Version(json.dumps([fence, plain], sort_keys=True))


def _parsed(version: Version) -> tuple[int, dict[str, Value | None]]:
    fence, plain = json.loads(version)
    guards = {name: None if value is None else from_plain(value) for name, value in plain.items()}
    return int(fence), guards


def _next_rev(rev: Value | None) -> Value:
    if rev is None:
        return value_of(secrets.randbits(_FIRST_REV_BITS))
    return value_of((number_of({REV: rev}, REV) or 0) + 1)
