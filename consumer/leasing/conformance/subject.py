"""What the suite needs of a backend beside its port."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from consumer.errors import LeasingError
from consumer.leasing.position import Position
from consumer.leasing.record import HashRange, LeaseRecord
from consumer.leasing.store import RecordStore


class RecordStoreSubject(Protocol):
    """A store of one test's own, as two processes see it; it is not created yet."""

    @property
    def store(self) -> RecordStore:
        """The store."""
        ...

    @property
    def rival(self) -> RecordStore:
        """The same, as another process has it."""
        ...

    async def spoil(self, key: str) -> None:
        """Write under a record's key what is no record."""
        ...


def full_record(key: str = "shard-1", *, owner: str | None = None) -> LeaseRecord:
    """Return a record in which no field has its default, save those of ownership."""
    return LeaseRecord(
        key=key,
        epoch=3,
        counter=17,
        owner=owner,
        checkpoint=Position(
            "49587497311274533994574834252742144236107130636007899138", 7, offset="@1"
        ),
        pending=Position("SHARD_END"),
        pending_state=b"\x00\xff state",
        owner_switches=2,
        write_id="w",
        parents=frozenset({"parent:1", "parent 2"}),
        children=frozenset({"child#1", "child/2"}),
        hash_range=HashRange(first="0", last="340282366920938463463374607431768211455"),
        attrs={"throughputKBps": "12.5", "streamName": '"clicks \u2713"'},
    )


async def failure_of(call: Coroutine[Any, Any, object]) -> LeasingError:
    """Return what a call raises."""
    try:
        returned = await call
    except LeasingError as error:
        return error
    raise AssertionError(f"expected a LeasingError, it returned {returned!r}")
