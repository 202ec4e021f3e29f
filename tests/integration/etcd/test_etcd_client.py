"""What the client promises beyond the port: large answers, quotas, and a close that leaves nobody waiting."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest

from broadsheet.allocator.errors import EtcdLimitError, EtcdUnavailableError
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.ops import Compare, Get, Put, prefix_range_end
from broadsheet.embedded.etcd import EmbeddedEtcd, EmbeddedEtcdProcess
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import DEADLINE_SECONDS

pytestmark = pytest.mark.etcd


async def test_answer_beyond_4_mebibytes_is_received(etcd: EtcdClient, etcd_root: str) -> None:
    """The default limit of gRPC, 4 MiB, would make a large key space unreadable."""
    prefix = f"{etcd_root}/".encode()
    for number in range(8):
        await etcd.put(prefix + b"%d" % number, bytes(1_000_000))

    result = await etcd.get_range(prefix, prefix_range_end(prefix))

    assert sum(len(kv.value) for kv in result.kvs) == 8_000_000


@pytest.mark.parametrize(
    "compares",
    [(), (Compare.absent(b"/absent"),)],
    ids=["reads", "compares-and-reads"],
)
async def test_etcd_survives_transactions_that_only_read_and_are_given_up(
    compares: tuple[Compare, ...],
) -> None:
    """An older etcd ends if such a transaction is cancelled while it gathers keys (etcd-io/etcd#14110): sent as they
    stand, a dozen of these were enough.
    """
    keys = [b"/k/%04d" % number for number in range(2_000)]
    gets = tuple(Get(key) for key in keys[:100])
    async with (
        EmbeddedEtcd() as server,
        EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as client,
    ):
        for start in range(0, len(keys), 100):
            await client.txn((), tuple(Put(key, bytes(100)) for key in keys[start : start + 100]))

        for number in range(200):
            # From before it is sent to when etcd is at work on it.
            with suppress(TimeoutError):
                async with asyncio.timeout(number % 20 * 0.000_2):
                    await client.txn(compares, (*gets, Get(b"/k/", b"/k0")))

        assert (await client.txn(compares, (Get(keys[0]),))).succeeded
        assert server.is_running


async def test_transaction_that_only_reads_sees_one_revision_while_others_write(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Forty keys, which a writer changes together all the time: no read sees some of them changed and others not."""
    keys = [f"{etcd_root}/{number:02d}".encode() for number in range(40)]
    gets = (*map(Get, keys), Get(keys[0], prefix_range_end(f"{etcd_root}/".encode())))
    seen: set[int] = set()

    async def write() -> None:
        for number in itertools.count():
            await etcd.txn((), tuple(Put(key, b"%d" % number) for key in keys))

    await etcd.txn((), tuple(Put(key, b"") for key in keys))
    async with TaskGroup() as group:
        group.start_soon(write(), name="write")
        while len(seen) < 50:
            result = await etcd.txn((), gets)
            revisions = {kv.mod_revision for kvs in result.gets for kv in kvs}
            assert len(revisions) == 1
            assert max(revisions) <= result.header.revision
            assert len(result.gets[-1]) == len(keys)
            seen |= revisions
        group.stop()


async def test_status_names_version_and_leader(etcd: EtcdClient) -> None:
    """What a health check shows."""
    status = await etcd.status()

    assert status.version.startswith("3.")
    assert status.leader_id == status.header.member_id
    assert status.db_bytes > 0


async def test_full_database_is_named_as_such_and_can_be_read(etcd_root: str) -> None:
    """Etcd is out of its quota: writes say so and what to do, reads and deletions go on."""
    key = f"{etcd_root}/k".encode()
    async with (
        EmbeddedEtcd(arguments=("--quota-backend-bytes", "4194304")) as server,
        EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as client,
    ):

        async def fill() -> None:
            for _ in range(50):
                await client.put(key, bytes(1_000_000))

        with pytest.raises(EtcdLimitError, match="quota-backend-bytes"):
            await fill()

        assert len((await client.get_range(key)).kvs) == 1
        assert await client.delete(key) == 1


async def test_close_ends_calls_and_watches_under_way(etcd_server: EmbeddedEtcdProcess) -> None:
    """A watch whose client closes ends with an error: a task that merely seemed cancelled would vanish unnoticed."""
    ended: list[BaseException] = []
    client = EtcdClient(EtcdConfig(endpoints=(etcd_server.endpoint,)))
    opened = asyncio.Event()

    async def watch() -> None:
        try:
            async for _ in client.watch(b"/close/", start_revision=start):
                opened.set()
        except EtcdUnavailableError as error:
            ended.append(error)

    async with TaskGroup() as group, asyncio.timeout(DEADLINE_SECONDS), client:
        start = await client.put(b"/close/k", b"")
        group.start_soon(watch(), name="watch")
        await opened.wait()

    assert len(ended) == 1
    with pytest.raises(EtcdUnavailableError, match="not open"):
        await client.get_range(b"/close/k")
