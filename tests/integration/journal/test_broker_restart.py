"""The journal client through a broker that is killed and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.wire import journal_pb2 as pb
from tests.support.broker import journal_spec
from tests.support.eventually import DEADLINE_SECONDS

pytestmark = pytest.mark.e2e


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[EmbeddedBrokerProcess]:
    """A broker in a process of its own."""
    with EmbeddedBrokerProcess(tmp_path / "broker" / "data") as process:
        yield process


async def test_reader_and_queued_appends_survive_a_killed_broker(
    broker_process: EmbeddedBrokerProcess,
) -> None:
    """Kill -9 while a reader blocks and appends are queued: all lines come, in order, none is missing.

    An append whose answer the kill took is repeated, so a run of lines may come twice; the reader's own bytes come
    once, whatever happens.
    """
    total = 3_000
    async with JournalClient(broker_process.address) as client:
        await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/one"))])
        async with AppendService(client) as service, asyncio.TaskGroup() as group:
            reading = group.create_task(_read_lines(client, total))
            for number in range(total):
                service.append("test/one", b"%d\n" % number)
                if number % 100 == 0:
                    await asyncio.sleep(0.001)
                if number == total // 2:
                    group.create_task(asyncio.to_thread(broker_process.restart))
            lines = await reading
            head = await client.write_head("test/one")

    firsts = list(dict.fromkeys(lines))
    assert firsts == list(range(total))
    assert len(b"".join(b"%d\n" % number for number in lines)) <= head


async def test_watch_and_unary_calls_survive_a_killed_broker(
    broker_process: EmbeddedBrokerProcess,
) -> None:
    """A watch goes on where it was, and a listing asked meanwhile waits for the broker to be back."""
    async with JournalClient(
        broker_process.address, policy=TransportPolicy(patience_seconds=20)
    ) as client:
        await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/one"))])
        watch = client.watch_list()
        before = await anext(watch)
        broker_process.kill()
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(broker_process.start))
            listing = await client.list()
            await client.append("test/one", b"x")
            await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/two"))])
            after = await anext(watch)
            while len(after.journals) < 2:
                after = await anext(watch)

    assert [journal.spec.name for journal in before.journals] == ["test/one"]
    assert listing.journals == before.journals
    assert [journal.spec.name for journal in after.journals] == ["test/one", "test/two"]


async def _read_lines(client: JournalClient, total: int) -> list[int]:
    lines: list[int] = []
    rest, offset = b"", 0
    async with client.reader("test/one") as reader:
        async for span in reader:
            assert span.offset == offset
            offset = span.end
            *whole, rest = (rest + span.content).split(b"\n")
            lines.extend(map(int, whole))
            if lines and lines[-1] == total - 1:
                return lines
    raise AssertionError("a blocking read without an end does not end")
