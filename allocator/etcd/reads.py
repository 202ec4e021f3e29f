"""Reads as of one revision, over any number of calls.

An older etcd crashes if a read-only transaction is cancelled while it gathers the keys: by a deadline, by the caller,
or because the caller's process was killed (etcd-io/etcd#14110, and #14891 after its first fix; fixed on the 3.5 branch
in December 2022). So a read-only transaction is never sent as one: its ranges are read separately, at one revision.
Comparisons gather no keys for the caller, so they may be sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from broadsheet.allocator.errors import RevisionCompactedError
from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.allocator.etcd.api import Etcd, RangeResult, TxnResult
from broadsheet.allocator.etcd.calls import Caller, Method
from broadsheet.allocator.etcd.convert import header_from, key_value_from
from broadsheet.allocator.ops import TXN_OPERATIONS_MAX, Compare, Get, KeyValue
from broadsheet.runtime.task_group import TaskGroup

PAGE_KEYS = 1_000
"""Keys asked for at a time; Gazette's mirror uses the same."""
PINNED_READ_ATTEMPTS = 5
"""Reads of the newest revision that start over because it was compacted between two calls."""
_NO_KEY: Final = b"\x00"
"""The end of a key that does not exist: no key of ours holds a zero byte."""
READS_AT_ONCE_MAX = 32
"""Ranges asked for at the same time; etcd answers each from memory."""

RANGE: Final[Method[rpc_pb2.RangeRequest, rpc_pb2.RangeResponse]] = Method(
    "/etcdserverpb.KV/Range", rpc_pb2.RangeResponse
)
_ResultT = TypeVar("_ResultT")


async def read_range(caller: Caller, key: bytes, range_end: bytes, revision: int) -> RangeResult:
    """Read keys in [key, range_end) as of one revision (0: the newest), in pages.

    Raises:
        RevisionCompactedError: etcd no longer has that revision.
    """

    async def read() -> RangeResult:
        return await _read_pages(caller, key, range_end, revision)

    return await _again_if_compacted(read, revision)


async def read_ranges(caller: Caller, gets: Sequence[Get]) -> TxnResult:
    """Read what a transaction of these operations would, as of the newest revision that any of them met.

    It takes one round trip if there are no writes meanwhile; ranges read before that revision are read again at it.

    Args:
        caller: Performs the calls.
        gets: At least one.
    """

    async def read() -> TxnResult:
        found = await _read_at_once(caller, gets, 0)
        newest = max(found, key=lambda each: each.header.revision).header
        older = [n for n, each in enumerate(found) if each.header.revision < newest.revision]
        again = await _read_at_once(caller, [gets[n] for n in older], newest.revision)
        for number, result in zip(older, again, strict=True):
            found[number] = result
        return TxnResult(header=newest, succeeded=True, gets=tuple(each.kvs for each in found))

    return await _again_if_compacted(read, 0)


async def read_expected(
    etcd: Etcd, expected: Mapping[bytes, KeyValue | None]
) -> dict[bytes, KeyValue | None]:
    """Read keys whose present values are probably known: one call confirms 128 of them.

    Those that are not as expected are read one by one, so that neither a response nor the work of etcd exceeds what was
    asked for. Parts of 128 keys may be as of different revisions.

    Args:
        etcd: Where they are.
        expected: By key; None: it is probably absent.

    Returns:
        The present values by key; None: it is absent.
    """
    keys = tuple(expected)
    parts = [keys[n : n + TXN_OPERATIONS_MAX] for n in range(0, len(keys), TXN_OPERATIONS_MAX)]
    found = dict(expected)
    for part in parts:
        compares = tuple(
            Compare.mod_revision(key, kv.mod_revision if (kv := expected[key]) else 0)
            for key in part
        )
        # Without a read, etcd would answer from a member that may lag. This key does not exist, so that etcd gathers
        # none, and cannot crash.
        if (await etcd.txn(compares, (Get(part[0] + _NO_KEY),))).succeeded:
            continue
        read = await etcd.txn((), tuple(map(Get, part)))
        found |= {key: kvs[0] if kvs else None for key, kvs in zip(part, read.gets, strict=True)}
    return found


async def _read_at_once(caller: Caller, gets: Sequence[Get], revision: int) -> list[RangeResult]:
    """Read ranges concurrently, each as of `revision`, or of the newest revision that it meets (0)."""
    slots = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def read_one(get: Get) -> RangeResult:
        async with slots:
            return await _read_pages(caller, get.key, get.range_end, revision)

    async with TaskGroup() as group:
        reads = [group.start_soon(read_one(get), name=f"read {n}") for n, get in enumerate(gets)]
    return [read.result() for read in reads]


async def _again_if_compacted(read: Callable[[], Awaitable[_ResultT]], revision: int) -> _ResultT:
    """Start over if the newest revision was compacted between two calls, because a newer one exists."""
    for attempt in range(1, PINNED_READ_ATTEMPTS + 1):
        try:
            return await read()
        except RevisionCompactedError as error:
            # A given revision does not come back; without one, a newer revision can be read.
            if revision or attempt == PINNED_READ_ATTEMPTS:
                raise RevisionCompactedError(revision, 0) from error
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _read_pages(caller: Caller, key: bytes, range_end: bytes, revision: int) -> RangeResult:
    kvs: list[KeyValue] = []
    next_key = key
    while True:
        request = rpc_pb2.RangeRequest(
            key=next_key, range_end=range_end, limit=PAGE_KEYS, revision=revision
        )
        response = await caller.unary(RANGE, request, idempotent=True)
        # The first page decides the revision of all pages.
        revision = revision or response.header.revision
        kvs.extend(map(key_value_from, response.kvs))
        if not response.more:
            header = header_from(response.header, revision=revision)
            return RangeResult(header=header, kvs=tuple(kvs))
        next_key = kvs[-1].key + b"\x00"
