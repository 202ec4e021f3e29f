"""Stands for the replicas of all members: marks each new assignment as caught up, as soon as it shows.

python -m bench.allocator.replicas ENDPOINT ROOT
"""

from __future__ import annotations

import asyncio
import sys

from bench.allocator.cluster import CAUGHT_UP, PUTS_PER_TXN
from broadsheet.allocator.errors import EtcdRequestError
from broadsheet.allocator.etcd.api import KeyPut, WatchBatch
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.ops import KeyValue, Put
from broadsheet.allocator.runtime.task_group import TaskGroup

LANES = 4


async def main(endpoint: str, root: str) -> None:
    """Follow the assignments of a root for ever."""
    async with EtcdClient(EtcdConfig(endpoints=(endpoint,))) as etcd, TaskGroup() as group:
        found = await etcd.get_range(b"/bench")
        behind: asyncio.Queue[KeyValue] = asyncio.Queue()
        for lane in range(LANES):
            group.start_soon(_mark(etcd, behind), name=f"lane {lane}")
        watch = etcd.watch(Keys(root).assignments_prefix, start_revision=found.header.revision + 1)
        print("ready", flush=True)
        async for batch in watch:
            for kv in _new(batch):
                behind.put_nowait(kv)


def _new(batch: WatchBatch) -> list[KeyValue]:
    return [event.kv for event in batch.events if isinstance(event, KeyPut) and not event.kv.value]


async def _mark(etcd: EtcdClient, behind: asyncio.Queue[KeyValue]) -> None:
    while True:
        kvs = [await behind.get()]
        while len(kvs) < PUTS_PER_TXN and not behind.empty():
            kvs.append(behind.get_nowait())
        puts = {kv.key: Put(kv.key, CAUGHT_UP, ignore_lease=True) for kv in kvs}
        try:
            await etcd.txn((), tuple(puts.values()))
        except EtcdRequestError:
            # One of them was moved or removed meanwhile: then each by itself.
            for put in puts.values():
                await _mark_one(etcd, put)


async def _mark_one(etcd: EtcdClient, put: Put) -> None:
    try:
        await etcd.txn((), (put,))
    except EtcdRequestError:
        return  # gone: nothing to mark


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
