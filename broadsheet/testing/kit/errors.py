"""Errors of the test kit."""

from __future__ import annotations

from broadsheet.consumer.errors import StoreUnavailableError
from broadsheet.runtime.errors import BroadsheetError


class ShardFailedError(BroadsheetError):
    """A shard failed for another reason than a fault that the test asked for; `__cause__` is what it failed with."""

    def __init__(self, shard: str, cause: BaseException) -> None:
        super().__init__(f"shard {shard!r} failed: {cause}")
        self.shard = shard


class StuckError(BroadsheetError):
    """The cluster did not get where the test wanted it; the message tells what waits."""


class ClusterFailedError(BroadsheetError):
    """A process of the cluster ended with an error that is no shard's failure; `__cause__` is that error."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the cluster ended with {type(cause).__name__}: {cause}")
        self.__cause__ = cause


class NotExactlyOnceError(AssertionError):
    """The application is not exactly once; the message tells what differs, where it was killed, and what to do."""


class InjectedFaultError(StoreUnavailableError):
    """The fault that a test asked for, in the place of the store's own error."""
