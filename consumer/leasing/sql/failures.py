"""What a failure of a database means for a lease: the one place that reads its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from consumer.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)
from consumer.failure_kind import is_passing_sqlite_error

_UNDEFINED_TABLE = "42P01"
_LOCK_NOT_AVAILABLE = "55P03"
_INSUFFICIENT_RESOURCES = "53"
"""PostgreSQL's class of errors: disk, memory, connections."""

_ROLLED_BACK = ("23", "40")
"""Its classes of errors at a commit that say that it was not made: broken constraints, conflicts of transactions."""


@contextmanager
def translated(*, outcome_unknown: bool = False) -> Iterator[None]:
    """Turn what the database raises into errors of leasing.

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
        # A local file: nothing is in doubt.
        if is_passing_sqlite_error(error.orig):
            return ThrottlingError(text)
        return DependencyError(text)
    rolled_back = code.startswith(_ROLLED_BACK)
    return DependencyError(text, outcome_unknown=outcome_unknown and not rolled_back)
