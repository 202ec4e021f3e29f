"""Classification of shard failures by cause, because each kind needs a different remedy.

transient    a service, or another shard, does not answer       try again, for ever
application  the application or its store raised                try again some times, then quarantine
data loss    what must be there is not                          quarantine: trying again may make it worse
replaced     a source was deleted and made again, or lost its end;
             or another system forgot whether it has our records      try again now and then: it may come back
fenced       a newer primary restored the shard                 prove the assignment, then try again
spec         the spec asks for what cannot be done              wait for another spec
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from broadsheet.allocator.errors import EtcdError
from broadsheet.broker.errors import BrokerDataError
from broadsheet.consumer.errors import (
    AssignmentLostError,
    CommitFencedError,
    ForeignLogError,
    ForeignStoreError,
    HintsError,
    LogDataLossError,
    LogFencedError,
    NoShardPrimaryError,
    NotShardPrimaryError,
    OutputDoubtError,
    ResolverStoppedError,
    ShardHeldBackError,
    ShardStoppedError,
    SourceDataLossError,
    SplitDelayedError,
    StoreUnavailableError,
    UnsupportedSpecError,
)
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    IndexHasGreaterOffsetError,
    JournalReplacedError,
    JournalStoreUnhealthyError,
    JournalSuspendedError,
    JournalUnavailableError,
    RegisterMismatchError,
    ReplayError,
)
from broadsheet.runtime.errors import EndpointError, RpcFailedError


class FailureKind(Enum):
    """The kind of error that ended an attempt to serve a shard."""

    TRANSIENT = "transient"
    APPLICATION = "application"
    DATA_LOSS = "data loss"
    REPLACED = "journal replaced"
    FENCED = "fenced"
    SPEC = "spec"
    HELD_BACK = "held back"


_KINDS: tuple[tuple[FailureKind, tuple[type[BaseException], ...]], ...] = (
    (
        FailureKind.FENCED,
        (AssignmentLostError, CommitFencedError, LogFencedError, RegisterMismatchError),
    ),
    (
        FailureKind.DATA_LOSS,
        (
            BrokerDataError,
            HintsError,
            IndexHasGreaterOffsetError,
            LogDataLossError,
            ReplayError,
            SourceDataLossError,
        ),
    ),
    # Tried again now and then: an operator says what Kafka has (`shardctl kafka assume`).
    (FailureKind.REPLACED, (JournalReplacedError, OutputDoubtError)),
    (FailureKind.HELD_BACK, (ShardHeldBackError,)),
    (FailureKind.SPEC, (ForeignLogError, ForeignStoreError, UnsupportedSpecError)),
    (
        FailureKind.TRANSIENT,
        (
            AppendOutcomeUnknownError,
            EndpointError,
            EtcdError,
            JournalStoreUnhealthyError,
            JournalSuspendedError,
            JournalUnavailableError,
            NoShardPrimaryError,
            NotShardPrimaryError,
            ResolverStoppedError,
            RpcFailedError,
            ShardStoppedError,
            SplitDelayedError,
            StoreUnavailableError,
            ConnectionError,
            TimeoutError,
        ),
    ),
)


_OPERATIONAL = "OperationalError"
_PASSING_OF_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL")
"""Beginnings of the names of its codes, which go on with what exactly was met."""


def failure_kind(error: BaseException) -> FailureKind:
    """Return the kind of an error: of the first in its chain of causes whose kind is known.

    An error of unknown kind was raised by the application, its store, or the framework. It counts as the
    application's, because that kind is retried a bounded number of times.
    """
    for each in causes_of(error):
        for kind, types in _KINDS:
            if isinstance(each, types):
                return kind
        if _is_database_in_the_way(each):
            return FailureKind.TRANSIENT
    return FailureKind.APPLICATION


# Beginnings of texts in a FAILED status, by which tools recognise them.
RAISED_AT = "raised at "
"""Before `FILE:LINE in FUNCTION`, the place in the application's code."""
STALLED_STATUS = "STALLED: "


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, groups in order, each once."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
        cause = each.__cause__
        if cause is None and not each.__suppress_context__:
            cause = each.__context__  # not named as the cause, but being handled: as common
        if cause is not None:
            pending.append(cause)


def _is_database_in_the_way(error: BaseException) -> bool:
    """Recognise a deadlock, a lock held too long or a server shutdown by its PEP 249 name.

    SQLite raises the same class for wrong statements, but has a code. SQLAlchemy only repeats the driver's error.
    """
    modules = {
        kind.__module__.partition(".")[0]
        for kind in type(error).__mro__
        if kind.__name__ == _OPERATIONAL
    }
    if "sqlite3" in modules:
        return is_passing_sqlite_error(error)
    return bool(modules - {"sqlalchemy"})


def is_passing_sqlite_error(error: BaseException | None) -> bool:
    """Report whether an SQLite error is transient: others hold the database, or there is no space for now."""
    name: str = getattr(error, "sqlite_errorname", "")
    return name.startswith(_PASSING_OF_SQLITE)
