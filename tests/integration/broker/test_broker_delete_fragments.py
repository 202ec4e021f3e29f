"""The broker removes fragments on request: anywhere but at the end, for good, and without taking it for damage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import IndexHasGreaterOffsetError, JournalNotFoundError
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import EndpointError
from broadsheet.security.auth import BearerAuth, Capability, Claims, KeyedAuth
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire.journal_pb2 import ApplyRequest, Fragment
from tests.support.broker import journal_spec
from tests.support.failing_disk import FailingDisk

JOURNAL = "a/journal"
KEYS = "c2VjcmV0LWtleS1vZi1zaXh0ZWVuLWJ5dGVzLCAzMiBieXRlcyBvciBtb3Jl"
BLOCK = 2_000
"""Of each append: more than a fragment's length, so each makes one."""


@asynccontextmanager
async def running(directory: Path, **settings: str) -> AsyncIterator[tuple[Broker, JournalClient]]:
    """A broker over a directory, and a client that may do everything."""
    auth = KeyedAuth(settings["auth_keys"]) if settings else None
    async with (
        Broker(BrokerConfig(data_dir=directory, **settings)) as broker,  # type: ignore[arg-type]
        JournalClient(broker.address, auth=auth) as client,
    ):
        yield broker, client


async def fill(client: JournalClient, count: int) -> list[Fragment]:
    """Create the journal and append `count` blocks, each a fragment of its own; return the fragments."""
    spec = journal_spec(JOURNAL, length=1024)
    await client.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=0)])
    for number in range(count):
        await client.append(JOURNAL, bytes([number]) * BLOCK)
    return await fragments(client)


async def fragments(client: JournalClient) -> list[Fragment]:
    """What the broker lists."""
    return [listed.spec for listed in await client.list_fragments(JOURNAL)]


async def content(client: JournalClient) -> dict[int, bytes]:
    """Every block that is there, by its number."""
    found: dict[int, bytes] = {}
    async for span in client.reader(JOURNAL, block=False):
        for at in range(0, len(span.content), BLOCK):
            found[(span.offset + at) // BLOCK] = span.content[at : at + BLOCK]
    return found


async def test_holes_stay_holes_over_restarts(tmp_path: Path) -> None:
    """Fragments go from the front and the middle; readers jump over them, appends go on, and three starts later the
    rest is all there. Files are gone from the disk.
    """
    async with running(tmp_path / "b") as (_, client):
        listed = await fill(client, 8)
        assert len(listed) == 8
        gone = [listed[0], listed[2], listed[3], listed[5]]
        deleted = await client.delete_fragments(JOURNAL, gone)
        assert [each.begin for each in deleted] == [each.begin for each in gone]
        expected = {number: bytes([number]) * BLOCK for number in (1, 4, 6, 7)}
        assert await content(client) == expected
    for number in (8, 9, 10):
        async with running(tmp_path / "b") as (_, client):
            assert await content(client) == expected
            response = await client.append(JOURNAL, bytes([number]) * BLOCK)
            assert response.commit.begin == number * BLOCK
            expected[number] = bytes([number]) * BLOCK
    begins = sorted(int(path.name[:16], 16) // BLOCK for path in (tmp_path / "b").rglob("*.raw"))
    assert set(begins) <= set(expected)


async def test_first_fragments_that_are_gone_without_a_note_are_declared(tmp_path: Path) -> None:
    """Retention notes where a journal begins before it removes anything: files that just went are lost bytes."""
    async with running(tmp_path / "b") as (_, client):
        listed = await fill(client, 6)
        await client.delete_fragments(JOURNAL, [listed[1], listed[2]])
    for path in (tmp_path / "b").rglob("*.raw"):
        if int(path.name[:16], 16) < 4 * BLOCK:
            path.unlink()
    async with running(tmp_path / "b") as (_, client):
        with pytest.raises(IndexHasGreaterOffsetError):
            await client.append(JOURNAL, b"!")
        assert min(await content(client)) == 4
        assert (await client.append(JOURNAL, b"!", offset=6 * BLOCK)).commit.begin == 6 * BLOCK


async def test_only_what_is_as_described_goes(tmp_path: Path) -> None:
    """Not the newest sealed fragment, nor the open one, nor one with another end or sum. Asking again is harmless."""
    async with running(tmp_path / "b") as (_, client):
        listed = await fill(client, 4)
        await client.append(JOURNAL, b"open")
        other_sum, other_end = Fragment(), Fragment()
        other_sum.CopyFrom(listed[0])
        other_sum.sum.part1 += 1
        other_end.CopyFrom(listed[1])
        other_end.end -= 1
        newest = await fragments(client)

        assert await client.delete_fragments(JOURNAL, [other_sum, other_end, *newest[-2:]]) == []
        assert await fragments(client) == newest
        for _ in range(2):
            (deleted,) = await client.delete_fragments(JOURNAL, [listed[1]])
            assert (deleted.begin, deleted.end) == (BLOCK, 2 * BLOCK)


async def test_reader_in_the_middle_of_a_fragment_finishes_it(tmp_path: Path) -> None:
    """It holds the file; the next one that it wants is jumped over."""
    async with running(tmp_path / "b") as (_, client):
        listed = await fill(client, 4)
        reader = client.reader(JOURNAL, block=True)
        async with reader:
            first = await anext(reader)
            await client.delete_fragments(JOURNAL, listed[:2])
            await client.append(JOURNAL, b"!")
            offsets = [first.offset]
            async for span in reader:
                offsets.append(span.offset)
                if span.offset + len(span.content) > 4 * BLOCK:
                    break
        assert offsets == sorted(offsets)


async def test_appends_go_on_beside_deletions(tmp_path: Path) -> None:
    """Both reach the log through the same hands: every append has its own offset, none is lost."""
    async with running(tmp_path / "b") as (_, client):
        listed = await fill(client, 20)
        async with asyncio.TaskGroup() as group:
            appends = [
                group.create_task(client.append(JOURNAL, bytes([n]) * BLOCK)) for n in range(20, 40)
            ]
            for each in listed[:15]:
                group.create_task(client.delete_fragments(JOURNAL, [each]))
        begins = sorted(task.result().commit.begin for task in appends)
        assert begins == [n * BLOCK for n in range(20, 40)]
        found = await content(client)
        assert set(found) >= set(range(15, 40))
        assert not set(found) & set(range(15))


async def test_deletion_needs_apply_on_the_journal(tmp_path: Path) -> None:
    """A token that may read and append, or is for another journal, removes nothing."""
    async with running(tmp_path / "b", auth_keys=KEYS) as (broker, client):
        listed = await fill(client, 3)
        for capability in (Capability.READ, Capability.APPEND | Capability.LIST):
            (metadata,) = KeyedAuth(KEYS).metadata(Claims(capability=capability))
            token = BearerAuth(metadata[1].removeprefix("Bearer "))
            async with JournalClient(broker.address, auth=token) as limited:
                with pytest.raises((NotAuthorizedError, UnauthenticatedError)):
                    await limited.delete_fragments(JOURNAL, listed[:1])
        assert await fragments(client) == listed
        with pytest.raises(JournalNotFoundError):
            await client.delete_fragments("no/journal", listed[:1])


@pytest.mark.parametrize("step", range(1, 5))
@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
async def test_disk_that_fails_before_the_note_is_durable_loses_nothing(
    tmp_path: Path, operation: str, step: int
) -> None:
    """Afterwards a block is there as a whole, or its deletion was confirmed; appends go on, and the next
    start finds no damage.
    """
    disk = FailingDisk()
    confirmed: set[int] = set()
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b"), disk=disk) as broker,
        JournalClient(broker.address, policy=TransportPolicy(patience_seconds=0)) as client,
    ):
        listed = await fill(client, 5)
        disk.fail_at(operation, step)
        try:
            deleted = await client.delete_fragments(JOURNAL, listed[1:3])
        except EndpointError as error:
            assert "No space left" in str(error)  # noqa: PT017 - it may also succeed
        else:
            confirmed = {each.begin // BLOCK for each in deleted}
    async with running(tmp_path / "b") as (_, client):
        found = await content(client)
        assert set(found) >= set(range(5)) - confirmed
        assert all(block == bytes([number]) * BLOCK for number, block in found.items())
        assert (await client.append(JOURNAL, b"!")).commit.begin == 5 * BLOCK
