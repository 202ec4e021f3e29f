"""Records in an SQL table, on the caller's connection and in its transaction.

    CREATE TABLE broadsheet_leases (
        lease_key VARCHAR(255) PRIMARY KEY, version BIGINT, owner VARCHAR(255), epoch BIGINT, record TEXT)

`record` is the whole record, as JSON; `owner` and `epoch` repeat two of its fields, for conditions and for other
programs' queries. A checkpoint that is swapped in the transaction of its outputs is exactly once: both are committed,
or neither.

    with engine.begin() as connection:
        connection.execute(sa.insert(outputs), rows)
        held = records.swap(connection, held, lambda record: commit(record, position))
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from broadsheet.consumer.registry.failure_kind import is_passing_sqlite_error
from broadsheet.leases.codec import decode, encode
from broadsheet.leases.compare_and_swap import stamped
from broadsheet.leases.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)
from broadsheet.leases.record import (
    KEY_CHARACTERS_MAX,
    LeaseRecord,
    RecordConflictError,
    Version,
    Versioned,
)

TABLE_NAME = "broadsheet_leases"
_FIRST_VERSION_BITS = 52
"""A record starts at a random version, so that a recreated record is not mistaken for the deleted one."""

# An explicit collation, because PostgreSQL's defaults differ between servers.
_Key = sa.String(KEY_CHARACTERS_MAX).with_variant(
    sa.String(KEY_CHARACTERS_MAX, collation="C"), "postgresql"
)

# Translation of database errors into leasing errors; nothing else reads them.

_UNDEFINED_TABLE = "42P01"
_LOCK_NOT_AVAILABLE = "55P03"
_INSUFFICIENT_RESOURCES = "53"
"""PostgreSQL's error class of exhausted disk, memory or connections."""
_ROLLED_BACK = ("23", "40")
"""Its error classes at a commit that prove a rollback: constraint violations, transaction conflicts."""


@contextmanager
def translated(*, outcome_unknown: bool = False) -> Iterator[None]:
    """Translate the database's errors into leasing errors.

    Args:
        outcome_unknown: The block commits, so a lost connection does not say whether it did.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _error_for(error, outcome_unknown=outcome_unknown) from error
    except sa.exc.TimeoutError as error:
        raise ThrottlingError(f"no connection to the database is free: {error}") from error


def _error_for(error: sa.exc.DBAPIError, *, outcome_unknown: bool) -> LeasingError:
    text = str(error.orig or error).strip()
    code: str = getattr(error.orig, "sqlstate", None) or ""
    if code == _UNDEFINED_TABLE or "no such table" in text:
        return InvalidStateError(f"no lease store in the database: create it ({text})")
    if code == _LOCK_NOT_AVAILABLE or code.startswith(_INSUFFICIENT_RESOURCES):
        return ThrottlingError(text)
    if isinstance(error.orig, sqlite3.Error):
        # In a local file the outcome is never in doubt.
        if is_passing_sqlite_error(error.orig):
            return ThrottlingError(text)
        return DependencyError(text)
    rolled_back = code.startswith(_ROLLED_BACK)
    return DependencyError(text, outcome_unknown=outcome_unknown and not rolled_back)


class StoredRecord(NamedTuple):
    """A row, whose record may be unreadable."""

    key: str
    version: int
    text: str

    def read(self) -> Versioned:
        """Return the record in it.

        Raises:
            UnreadableLeaseError: there is none.
        """
        return _versioned(decode(self.text, key=self.key), self.version)


class SqlRecords:
    """Reads and writes records on the caller's connections. It never commits and never rolls back."""

    def __init__(self, table_name: str = TABLE_NAME) -> None:
        """Describe the table.

        Args:
            table_name: Of the table; one for each application that shares the database.
        """
        self.table = sa.Table(
            table_name,
            sa.MetaData(),
            sa.Column("lease_key", _Key, primary_key=True),
            sa.Column("version", sa.BigInteger, nullable=False),
            sa.Column("owner", sa.String(KEY_CHARACTERS_MAX), nullable=True, index=True),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("record", sa.Text, nullable=False),
        )
        # Built once, because building and hashing a statement costs more than sending it.
        columns = self.table.c
        self._get = sa.select(columns.version, columns.record).where(
            columns.lease_key == sa.bindparam("key")
        )
        self._replace = {(held, False): self._replacing(held=held) for held in (True, False)} | {
            (held, True): self._replacing(held=held).where(_limits_wait()) for held in (True, False)
        }

    def get(self, connection: Connection, key: str) -> Versioned | None:
        """Return a record as the transaction sees it.

        Raises:
            UnreadableLeaseError: it cannot be read.
            InvalidStateError: there is no table.
        """
        with translated():
            row = connection.execute(self._get, {"key": key}).one_or_none()
        return None if row is None else StoredRecord(key, row.version, row.record).read()

    def page(
        self, connection: Connection, *, after: str, owner: str | None, limit: int
    ) -> list[StoredRecord]:
        """Return rows in the order of their keys.

        Args:
            connection: To read on.
            after: Only keys beyond this one.
            owner: Only records of this owner; None: all.
            limit: At most so many.
        """
        columns = self.table.c
        query = (
            sa.select(columns.lease_key, columns.version, columns.record)
            .where(columns.lease_key > after)
            .order_by(columns.lease_key)
            .limit(limit)
        )
        if owner is not None:
            query = query.where(columns.owner == owner)
        with translated():
            rows = connection.execute(query).all()
        return [StoredRecord(row.lease_key, row.version, row.record) for row in rows]

    def create(self, connection: Connection, record: LeaseRecord) -> Versioned:
        """Insert a record.

        Raises:
            RecordConflictError: there is one with its key.
        """
        version = secrets.randbits(_FIRST_VERSION_BITS)
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        insert = dialect.insert(self.table).values(
            lease_key=record.key, version=version, **_fields_of(record)
        )
        # Not the row count, which drivers do not report for inserts.
        inserting = insert.on_conflict_do_nothing(
            index_elements=[self.table.c.lease_key]
        ).returning(self.table.c.version)
        with translated():
            inserted = connection.scalar(inserting)
        if inserted is None:
            raise RecordConflictError(record.key, self.get(connection, record.key))
        return _versioned(record, version)

    def replace(
        self,
        connection: Connection,
        record: LeaseRecord,
        expected: Versioned,
        *,
        lock_wait_milliseconds: int | None = None,
    ) -> Versioned:
        """Update a record.

        Args:
            connection: In a transaction; or, on PostgreSQL, without one.
            record: What it is then.
            expected: What it must be.
            lock_wait_milliseconds: Without a transaction: for how long the row may be locked.

        Raises:
            RecordConflictError: it was changed, or is gone.
        """
        version = int(expected.version) + 1
        alone = lock_wait_milliseconds is not None
        given = {
            "key": record.key,
            "seen": int(expected.version),
            "new_version": version,
            **{f"new_{name}": value for name, value in _fields_of(record).items()},
        }
        if expected.fence:
            given["seen_epoch"] = _epoch_of(expected.fence)
        if alone:
            given["lock_wait"] = f"{lock_wait_milliseconds}ms"
        with translated(outcome_unknown=alone):
            done = connection.execute(self._replace[bool(expected.fence), alone], given)
        if done.rowcount != 1:
            raise RecordConflictError(record.key, self.get(connection, record.key))
        return _versioned(record, version)

    def swap(
        self,
        connection: Connection,
        seen: Versioned,
        change: Callable[[LeaseRecord], LeaseRecord],
    ) -> Versioned:
        """Make a change in the caller's transaction; it becomes visible with the caller's commit.

        Args:
            connection: In the caller's transaction.
            seen: What the caller believes to be there.
            change: A rule of `broadsheet.leases.rules`.

        Raises:
            RecordConflictError: it was changed, or is gone. Roll back: the lease may be lost.
        """
        record, _ = stamped(seen.record, change(seen.record))
        return self.replace(connection, record, seen)

    def delete(self, connection: Connection, key: str, expected: Versioned | None = None) -> bool:
        """Delete a record. False if it is not there.

        Raises:
            RecordConflictError: there is another than `expected`.
        """
        delete = sa.delete(self.table).where(*self._is(key, expected))
        with translated():
            done = connection.execute(delete)
        if done.rowcount:
            return True
        if expected is not None and (current := self.get(connection, key)) is not None:
            raise RecordConflictError(key, current)
        return False

    def _replacing(self, *, held: bool) -> sa.Update:
        """Return the statement that replaces a held record, or a free one."""
        columns = self.table.c
        holder = (
            (columns.owner.is_not(None), columns.epoch == sa.bindparam("seen_epoch"))
            if held
            else (columns.owner.is_(None),)
        )
        return (
            sa.update(self.table)
            .where(
                columns.lease_key == sa.bindparam("key"),
                columns.version == sa.bindparam("seen"),
                *holder,
            )
            .values(
                {
                    name: sa.bindparam(f"new_{name}")
                    for name in ("version", "owner", "epoch", "record")
                }
            )
        )

    def _is(self, key: str, expected: Versioned | None) -> list[sa.ColumnElement[bool]]:
        conditions = [self.table.c.lease_key == key]
        if expected is not None:
            conditions.append(self.table.c.version == int(expected.version))
            conditions += self._has_fence(expected.fence)
        return conditions

    def _has_fence(self, fence: int) -> list[sa.ColumnElement[bool]]:
        columns = self.table.c
        if not fence:
            return [columns.owner.is_(None)]
        return [columns.owner.is_not(None), columns.epoch == _epoch_of(fence)]


def _limits_wait() -> sa.ColumnElement[bool]:
    """Return a true condition that limits a statement's wait for the lock of a matching row.

    PostgreSQL locks a row once all conditions are met, so the limit is set then; it ends with the transaction.
    """
    return sa.func.set_config("lock_timeout", sa.bindparam("lock_wait"), True).is_not(None)


def _fields_of(record: LeaseRecord) -> dict[str, object]:
    return {"owner": record.owner, "epoch": record.epoch, "record": encode(record)}


def _versioned(record: LeaseRecord, version: int) -> Versioned:
    fence = 0 if record.holder is None else record.epoch + 1
    return Versioned(record=record, version=Version(str(version)), fence=fence)


def _epoch_of(fence: int) -> int:
    """Return the epoch of a fence. A fence is the epoch plus 1, because epochs begin at 0 and fence 0 means none."""
    return fence - 1
