"""An etcd under the contract's tests, and what they do with it again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from broadsheet.allocator.etcd.api import Etcd, WatchEvent
from broadsheet.allocator.ops import Put
from tests.support.eventually import DEADLINE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdUnderTest:
    """An implementation, and what the suite needs beside its port."""

    etcd: Etcd
    compact: Callable[[int], Awaitable[None]]


async def put(etcd: Etcd, key: bytes, value: bytes = b"", *, lease: int = 0) -> int:
    """Write a key, and return the revision."""
    result = await etcd.txn((), (Put(key, value, lease),))
    assert result.succeeded
    return result.header.revision


async def events_of(etcd: Etcd, prefix: bytes, start_revision: int, count: int) -> list[WatchEvent]:
    """Return the first changes below a prefix since a revision, `count` or more."""
    events: list[WatchEvent] = []
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        aclosing(etcd.watch(prefix, start_revision=start_revision)) as batches,
    ):
        async for batch in batches:
            events.extend(batch.events)
            if len(events) >= count:
                break
    return events
