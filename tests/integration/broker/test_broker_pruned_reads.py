"""Reads of fragments that are being removed: what is gone is jumped over, and is never taken for a failure."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ApplyRequest, Fragment
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.shardctl_runs import shardctl

JOURNAL = "a/journal"
BLOCK = 2_000
"""Of each append: more than a fragment's length, so each makes one."""


def _config(tmp_path: Path) -> BrokerConfig:
    """Return the settings of a broker that keeps nothing of what it has published."""
    (tmp_path / "root").mkdir(exist_ok=True)
    return BrokerConfig(
        data_dir=tmp_path / "b", file_root=tmp_path / "root", local_fragment_bytes_max=1
    )


@asynccontextmanager
async def _running(tmp_path: Path) -> AsyncIterator[JournalClient]:
    policy = TransportPolicy(patience_seconds=0.0)
    async with (
        Broker(_config(tmp_path)) as broker,
        JournalClient(broker.address, policy=policy) as client,
    ):
        yield client


async def _fill(client: JournalClient, count: int) -> list[Fragment]:
    """Append `count` blocks; return their fragments once all but the last are in the store."""
    spec = journal_spec(JOURNAL, length=1024)
    spec.fragment.stores.append("file:///store/")
    await client.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=0)])
    for number in range(count):
        await client.append(JOURNAL, bytes([number]) * BLOCK)

    async def stored() -> list[Fragment]:
        listed = [each.spec for each in await client.list_fragments(JOURNAL)]
        return listed if all(each.backing_store for each in listed[:-1]) else []

    return await eventually(stored)


async def _blocks(client: JournalClient, offset: int = 0, end_offset: int = 0) -> list[int]:
    """Return the numbers of the blocks that a read delivers."""
    found: list[int] = []
    reader = client.reader(JOURNAL, offset=offset, end_offset=end_offset, block=False)
    async for span in reader:
        for at in range(0, len(span.content), BLOCK):
            number = (span.offset + at) // BLOCK
            assert span.content[at : at + BLOCK] == bytes([number]) * BLOCK
            found.append(number)
    return found


def _object(tmp_path: Path, fragment: Fragment) -> Path:
    [path] = (tmp_path / "root").rglob(f"{fragment.begin:016x}-*")
    return path


async def test_reads_beside_a_prune_get_content_or_a_jump(tmp_path: Path) -> None:
    """Readers go through a journal while most of it is removed, whose only copies are in a store: none of them is told
    that something failed.
    """
    count = 40
    async with _running(tmp_path) as client, TaskGroup() as group:
        listed = await _fill(client, count)
        deletion = client.delete_fragments(JOURNAL, listed[: count - 4])
        pruned = group.start_soon(deletion, name="prune")
        reads = 0
        while not pruned.done():
            found = await _blocks(client, offset=(reads * 7 % (count - 4)) * BLOCK)
            assert found[-4:] == list(range(count - 4, count))
            reads += 1
        deleted = await pruned
        left = await _blocks(client)

    assert reads
    assert len(deleted) == count - 4
    assert left == list(range(count - 4, count))


async def test_a_removal_that_ends_half_way_leaves_nothing_listed_that_is_gone(
    tmp_path: Path,
) -> None:
    """The store fails at the second object: the first is gone for readers, too, the others are served, and asking again
    removes them.
    """
    async with _running(tmp_path) as client:
        listed = await _fill(client, 6)
        second = _object(tmp_path, listed[1])
        aside = second.with_name("aside")
        second.rename(aside)
        (second / "in the way").mkdir(parents=True)
        with pytest.raises(ServiceError):
            await client.delete_fragments(JOURNAL, listed[:3])
        shutil.rmtree(second)
        aside.rename(second)
        between = await _blocks(client)
        await client.delete_fragments(JOURNAL, listed[:3])
        after = await _blocks(client)

    assert between == [1, 2, 3, 4, 5]
    assert after == [3, 4, 5]


async def test_a_fragment_whose_removal_a_crash_interrupted_is_jumped_over(tmp_path: Path) -> None:
    """Its object went, and the record of it is still there at the next start: the log says that it was removed."""
    async with _running(tmp_path) as client:
        listed = await _fill(client, 4)
        [record] = (tmp_path / "b").rglob(f"{listed[1].begin:016x}-*.stored")
        kept = record.read_bytes()
        await client.delete_fragments(JOURNAL, [listed[1]])
    record.write_bytes(kept)

    async with _running(tmp_path) as client:
        assert [each.spec.begin for each in await client.list_fragments(JOURNAL)][1] == BLOCK
        assert await _blocks(client) == [0, 2, 3]
        assert [each.spec.begin for each in await client.list_fragments(JOURNAL)][1] == 2 * BLOCK


async def test_an_object_that_somebody_removed_is_an_error_until_it_is_given_up(
    tmp_path: Path,
) -> None:
    """An undeclared loss is not jumped over: the store may not be mounted. The error names fragment, store and
    remedy, and the remedy works, but not on a store that shows nothing at all.
    """
    async with _running(tmp_path) as client:
        listed = await _fill(client, 4)
        address = client.address
        store, aside = tmp_path / "root" / "store", tmp_path / "aside"
        _object(tmp_path, listed[1]).unlink()
        with pytest.raises(ServiceError) as caught:
            await _blocks(client)
        store.rename(aside)
        line = f"shardctl journals verify {JOURNAL} --discard-damaged --broker {address}"
        unmounted = await asyncio.to_thread(shardctl, line)
        aside.rename(store)
        discarded = await asyncio.to_thread(shardctl, line)
        left = await _blocks(client)

    text = str(caught.value)
    assert f"fragment [{BLOCK}, {2 * BLOCK})" in text
    assert "file:///store/" in text
    assert f"shardctl journals verify {JOURNAL} --discard-damaged" in text
    assert unmounted.status == 1
    assert discarded.status == 0
    assert left == [0, 2, 3]
