"""Shards whose source is another journal than the one they have read: deleted and applied again, lost, or cut short."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.broker.commit_log import MAGIC_BYTES
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import IndexHasGreaterOffsetError
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_shards import (
    JOURNALS,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    counts,
    read_through,
    running_host,
    spec_of,
)
from tests.support.members import Producer, create_journals

pytestmark = pytest.mark.etcd

BEFORE, AFTER = 100, 50
"""Messages published before and after the journal is replaced."""
CONFIG = ShardConfig(
    restart_delay_seconds=0.05, restart_delay_seconds_max=0.2, head_patience_seconds=0.2
)


async def replace_source(journals: JournalClient) -> None:
    """Delete the source and apply it again."""
    await journals.apply([ApplyRequest.Change(delete=SOURCE, expect_mod_revision=-1)])
    await create_journals(journals, SOURCE)


def failed(host: ShardHost, *texts: str) -> bool:
    """Tell whether the shard says that its source was replaced, and both ways on."""
    return host.says(
        SHARD, ReplicaStatus.FAILED, SHARD, SOURCE, "does not hold what was read", *texts
    )


async def test_journal_deleted_and_applied_again_fails_the_shard(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """The checkpoint is of the old journal: to wait until the new one has come to its offset would skip 50 messages in
    silence. Both ways on are named.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    application = Counting(tmp_path)
    shard = host.start(spec, application, config=CONFIG)
    end = await Producer(journals).publish(SOURCE, map(str, range(BEFORE)))
    await read_through(shard, source=end)

    await replace_source(journals)
    await Producer(journals).publish(SOURCE, ["after"] * AFTER)

    await eventually(
        lambda: failed(
            host, f"offset {end}", "epoch", "Restore", "reset-source", "journal replaced"
        )
    )
    assert "after" not in application.stores[-1].state


async def test_replaced_journal_that_is_longer_by_now_fails_the_shard(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Once the new journal is longer than the old one was, offsets look right: only its identity tells."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    application = Counting(tmp_path)
    shard = host.start(spec, application, config=CONFIG)
    end = await Producer(journals).publish(SOURCE, ["before"])
    await read_through(shard, source=end)
    await shard.stop()

    await replace_source(journals)
    head = await Producer(journals).publish(SOURCE, ["after"] * AFTER)
    assert head > end
    second = host.start(spec, application, config=CONFIG)

    await eventually(lambda: failed(host, f"write head is {head}"))
    assert not second.is_ready
    assert "after" not in application.stores[-1].state


@asynccontextmanager
async def broker_and_host(
    directory: Path, etcd: EtcdClient, root: str, *, port: int = 0
) -> AsyncIterator[tuple[ShardHost, JournalClient, int]]:
    """Run a broker on a directory, and a host of it."""
    async with (
        EmbeddedBroker(directory, port=port) as broker,
        JournalClient(broker.address) as journals,
        running_host(etcd, root, journals) as host,
    ):
        yield host, journals, int(broker.address.rpartition(":")[2])


def lose_last_frame(directory: Path) -> Iterator[Path]:
    """Cut the last frame off each commit log that has content, as a disk that lied about a sync; yield those."""
    for log in directory.glob("journals/*/commit-*"):
        content = log.read_bytes()
        if b"key" in content:
            log.write_bytes(content[: content.rindex(MAGIC_BYTES)])
            yield log


async def one_life(
    directory: Path, etcd: EtcdClient, root: str, files: Path, *appends: list[str]
) -> int:
    """Have a shard count appends in a life of its own; return the source's write head."""
    spec = spec_of(SHARD, SOURCE)
    async with broker_and_host(directory, etcd, root) as (host, journals, _):
        await create_journals(journals, *JOURNALS)
        await host.assign(spec)
        shard = host.start(spec, Counting(files), config=CONFIG)
        producer, end = Producer(journals), 0
        for keys in appends:
            end = await producer.publish(SOURCE, keys)
        await read_through(shard, source=end)
        return end


async def test_restart_of_the_broker_fails_no_shard(
    etcd: EtcdClient, etcd_root: str, tmp_path: Path
) -> None:
    """Each opening of a journal is an epoch; where nothing was lost, a shard reads on, whatever is written next."""
    directory, files = tmp_path / "broker", tmp_path
    await one_life(directory, etcd, etcd_root, files, ["before"])
    async with broker_and_host(directory, etcd, etcd_root) as (host, journals, _):
        end = await Producer(journals).publish(SOURCE, ["after"])
        shard = host.start(spec_of(SHARD, SOURCE), Counting(files), config=CONFIG)

        await read_through(shard, source=end)

        assert await counts(shard) == {"before": 1, "after": 1}


async def test_lost_data_directory_fails_the_shard(
    etcd: EtcdClient, etcd_root: str, tmp_path: Path
) -> None:
    """A broker that begins again from nothing gives its journals the same names and revisions."""
    directory, files = tmp_path / "broker", tmp_path
    await one_life(directory, etcd, etcd_root, files, ["before"])
    shutil.rmtree(directory)
    async with broker_and_host(directory, etcd, etcd_root) as (host, journals, _):
        await create_journals(journals, *JOURNALS)
        head = await Producer(journals).publish(SOURCE, ["after"] * AFTER)
        host.start(spec_of(SHARD, SOURCE), Counting(files), config=CONFIG)

        await eventually(lambda: failed(host, f"write head is {head}"))


async def test_lost_last_frame_is_never_written_over(
    etcd: EtcdClient, etcd_root: str, tmp_path: Path
) -> None:
    """The broker remembers the head of a log that was cut, and refuses appends until the loss is accepted. So the shard
    that read the lost frame goes on behind it, and what others write is read once.
    """
    directory, files = tmp_path / "broker", tmp_path
    end = await one_life(directory, etcd, etcd_root, files, ["before"], ["lost"])
    assert list(lose_last_frame(directory)), "the test is of a cut log"
    async with broker_and_host(directory, etcd, etcd_root) as (host, journals, _):
        assert await journals.write_head(SOURCE) == end
        with pytest.raises(IndexHasGreaterOffsetError):
            await journals.append(SOURCE, b"refused\n")
        await journals.reset_head(SOURCE)
        head = await Producer(journals).publish(SOURCE, ["after"])
        shard = host.start(spec_of(SHARD, SOURCE), Counting(files), config=CONFIG)
        await read_through(shard, source=head)

        assert head > end
        assert await counts(shard) == {"before": 1, "lost": 1, "after": 1}


async def test_shard_goes_on_once_the_journal_is_restored(
    etcd: EtcdClient, etcd_root: str, tmp_path: Path
) -> None:
    """A broker that was started on an empty directory by mistake fails shards; started on its own again, they go on by
    themselves, where they were.
    """
    directory, files = tmp_path / "broker", tmp_path
    await one_life(directory, etcd, etcd_root, files, ["before"])
    async with EmbeddedBroker(tmp_path / "empty") as empty:
        port = int(empty.address.rpartition(":")[2])
        async with JournalClient(empty.address) as operator:
            # Whoever applied to this broker would wait for its revisions at the other one.
            await create_journals(operator, *JOURNALS)
        async with (
            JournalClient(empty.address) as journals,
            running_host(etcd, etcd_root, journals) as host,
        ):
            shard = host.start(spec_of(SHARD, SOURCE), Counting(files), config=CONFIG)
            await eventually(lambda: failed(host))
            await empty.stop()
            async with EmbeddedBroker(directory, port=port):
                end = await Producer(journals).publish(SOURCE, ["after"])
                await read_through(shard, source=end)
                assert await counts(shard) == {"before": 1, "after": 1}
