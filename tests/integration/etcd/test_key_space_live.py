"""A key space over a real etcd: it follows, survives compaction, and delays nothing it need not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from uuid import uuid4

import pytest

from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Put
from broadsheet.embedded.etcd import EmbeddedEtcd
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.plain_values import PlainDecoder, PlainItem
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.etcd
ITEM = ItemId("item")


@pytest.fixture
def keys(etcd_root: str) -> Keys:
    """Keys below a root of the test's own."""
    return Keys(etcd_root)


@asynccontextmanager
async def _watched(key_space: KeySpace) -> AsyncIterator[KeySpace]:
    async with TaskGroup() as group:
        group.start_soon(key_space.watch(), name="watch")
        yield key_space
        group.stop()


async def test_key_space_loads_an_exact_revision_and_follows_from_there(
    etcd: EtcdClient, keys: Keys
) -> None:
    """Loaded at its own announcement, then watched: nothing between the two is lost."""
    announced = await etcd.put(keys.item(ITEM), b"R=1")
    await etcd.put(keys.item(ITEM), b"R=2")
    key_space = KeySpace(etcd, keys, PlainDecoder())

    await key_space.load(revision=announced)

    assert key_space.header.revision == announced
    assert key_space.items[ITEM].value == PlainItem(1)
    async with _watched(key_space), asyncio.timeout(DEADLINE_SECONDS):
        last = await etcd.put(keys.member(MemberId("z", "m")), b"limit=1")
        await key_space.wait_for_revision(last)
        assert key_space.items[ITEM].value == PlainItem(2)
        assert list(key_space.members) == [MemberId("z", "m")]


async def test_key_space_ignores_roots_that_merely_begin_alike(
    etcd: EtcdClient, keys: Keys
) -> None:
    """`/rootX` is another's: neither its keys nor its revisions show."""
    await etcd.put(keys.root.encode() + b"X/items/stranger", b"R=1")
    key_space = KeySpace(etcd, keys, PlainDecoder())

    await key_space.load()

    assert len(key_space.items) == 0
    assert key_space.undecodable == {}


async def test_key_space_applies_a_lone_change_at_once_and_a_burst_together(
    etcd: EtcdClient, keys: Keys
) -> None:
    """The first change shows without the delay; the hundred that follow cost one pass, or one for each delay."""
    delay_seconds = 1.2
    key_space = KeySpace(etcd, keys, PlainDecoder(), apply_delay_seconds=delay_seconds)
    await key_space.load()
    passes: list[int] = []
    key_space.observe(ObserverStage.WAKE, lambda: passes.append(key_space.header.revision))

    async with _watched(key_space), asyncio.timeout(DEADLINE_SECONDS):
        # The stream may take a moment to open; the second lone change measures only the application.
        await key_space.wait_for_revision(await etcd.put(keys.item(ITEM), b"R=0"))
        quiet_from = time.monotonic() + delay_seconds + 0.1
        await eventually(lambda: time.monotonic() > quiet_from)
        passes.clear()
        started = time.monotonic()
        lone = await etcd.put(keys.item(ITEM), b"R=0")
        written = time.monotonic()  # How long that took is the disk's business.
        await key_space.wait_for_revision(lone)
        lone_seconds = time.monotonic() - written
        for number in range(100):
            last = await etcd.put(keys.item(ITEM), b"R=%d" % number)
        await key_space.wait_for_revision(last)
        burst_seconds = time.monotonic() - started

    assert lone_seconds < delay_seconds - 0.1
    assert 2 <= len(passes) <= 3 + burst_seconds / delay_seconds


async def test_read_back_of_own_writes_ends_the_delay_of_bursts(
    etcd: EtcdClient, keys: Keys
) -> None:
    """One write after another, each waited for: the delay of ten minutes is never waited for."""
    key_space = KeySpace(etcd, keys, PlainDecoder(), apply_delay_seconds=600.0)
    await key_space.load()
    async with _watched(key_space), asyncio.timeout(300):
        for number in range(20):
            await key_space.read_back(await etcd.put(keys.item(ITEM), b"R=%d" % number))


async def test_key_space_reloads_after_compaction_and_tells_observers_once() -> None:
    """Cut off while history is made and compacted away: it returns with the difference, in one step, and follows on."""
    keys = Keys(f"/test/{uuid4().hex}")
    async with (
        EmbeddedEtcd(listen="tcp") as server,
        TcpProxy(server.endpoint) as proxy,
        EtcdClient(EtcdConfig(endpoints=(proxy.endpoint,))) as cut_off,
        EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as direct,
    ):
        await direct.put(keys.item(ItemId("gone")), b"R=1")
        await direct.put(keys.item(ITEM), b"R=1")
        key_space = KeySpace(cut_off, keys, PlainDecoder())
        await key_space.load()
        async with _watched(key_space), asyncio.timeout(DEADLINE_SECONDS):
            first = await direct.put(keys.item(ItemId("first")), b"R=1")
            await key_space.wait_for_revision(first)
            seen: list[set[str]] = []
            key_space.observe(ObserverStage.WAKE, lambda: seen.append(set(key_space.items)))

            await proxy.cut()
            await direct.delete(keys.item(ItemId("gone")))
            await direct.put(keys.item(ItemId("passing")), b"R=1")
            await direct.delete(keys.item(ItemId("passing")))
            last = await direct.put(keys.item(ITEM), b"R=2")
            await direct.compact(last)
            await proxy.heal()
            await key_space.wait_for_revision(last)

            assert seen == [{"first", "item"}]
            assert key_space.items[ITEM].value == PlainItem(2)
            after = await direct.put(keys.item(ItemId("after")), b"R=1")
            await key_space.wait_for_revision(after)
            assert seen[1:] == [{"first", "item", "after"}]


async def test_key_space_of_20000_keys_loads_and_follows_quickly(
    etcd: EtcdClient, keys: Keys
) -> None:
    """The size the allocator is meant for: a load in seconds, and a change costs its own size, not the key space's."""
    names = [ItemId(f"item-{number:05d}") for number in range(20_000)]
    for start in range(0, len(names), 128):
        batch = names[start : start + 128]
        await etcd.txn((), tuple(Put(keys.item(name), b"R=1") for name in batch))
    key_space = KeySpace(etcd, keys, PlainDecoder(), apply_delay_seconds=0)

    started = time.monotonic()
    await key_space.load()
    load_seconds = time.monotonic() - started

    assert list(key_space.items) == names
    async with _watched(key_space), asyncio.timeout(DEADLINE_SECONDS):
        change_seconds: list[float] = []
        for _ in range(100):
            started = time.monotonic()
            await key_space.wait_for_revision(await etcd.put(keys.item(names[0]), b"R=2"))
            change_seconds.append(time.monotonic() - started)

    assert load_seconds < 5
    assert median(change_seconds) < 0.05, "some wait for the disk, but not most"
