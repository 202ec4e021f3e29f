"""Callers that give up at any moment: appends stay whole or absent, and nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.server import Broker
from broadsheet.journals.block_sums import Sums
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    ApplyRequest,
    JournalSpec,
    ReadRequest,
    Status,
)
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.eventually import eventually
from tests.support.failing_disk import FailingDisk, descriptors_under

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

JOURNAL = "a/journal"
Change = ApplyRequest.Change
# In a record; in memory, beside it; in a staging file; a staging file that is adopted.
SIZES = (100, 90_000, 600_000, 3 << 20, 17 << 20)


def _content(number: int, size: int) -> bytes:
    """Return content that tells its own number and size."""
    return b"%8d %9d|" % (number, size) + bytes([number % 251]) * size


def _appends_in(journal: bytes) -> Counter[int]:
    """Return how often each append stands in a journal, having checked that each one is whole."""
    found: Counter[int] = Counter()
    position = 0
    while position < len(journal):
        number, size = int(journal[position : position + 8]), int(journal[position + 9 :][:9])
        whole = _content(number, size)
        assert journal[position : position + len(whole)] == whole, f"append {number} is torn"
        found[number] += 1
        position += len(whole)
    return found


class _Appends:
    """Appends that are cancelled at random moments."""

    def __init__(self, stub: JournalAsyncStub, seed: int) -> None:
        self._stub = stub
        self._random = random.Random(seed)
        self.acknowledged: set[int] = set()
        self.sent = 0

    async def one(self, longest_seconds: float) -> None:
        """Start an append and give it up after a random time, unless it is done by then."""
        self.sent += 1
        number, size = self.sent, self._random.choices(SIZES, (30, 30, 20, 12, 3))[0]
        content = _content(number, size)
        chunks = [content[at : at + 500_000] for at in range(0, len(content), 500_000)]
        patience = self._random.choice((longest_seconds, longest_seconds / 10, 30.0))
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.CancelledError):
            async with asyncio.timeout(self._random.uniform(0, patience)):
                response = await append(self._stub, JOURNAL, *chunks)
                if response.status == Status.OK:
                    self.acknowledged.add(number)

    async def many(self, count: int, *, longest_seconds: float) -> None:
        """Run several at once, over and over."""
        for _ in range(count // 8):
            await asyncio.gather(*(self.one(longest_seconds) for _ in range(8)))


@pytest.mark.parametrize("seed", [1, 2])
async def test_appends_cancelled_at_random_are_whole_or_absent(tmp_path: Path, seed: int) -> None:
    """I1–I3, I9: each acknowledged append is there once, each other one whole or not at all, also after a restart."""
    config = BrokerConfig(
        data_dir=tmp_path / "b", append_memory_bytes_max=1 << 20, staged_memory_bytes_max=4 << 20
    )
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL, length=4 << 20))
        appends = _Appends(stub, seed)
        await appends.many(120, longest_seconds=0.15)
        content = (await read(stub, JOURNAL)).content
        found = _appends_in(content)
        assert appends.acknowledged <= set(found)
        assert set(found.values()) <= {1}
        # The broker is still well, and has given back what it took.
        assert (await append(stub, JOURNAL)).commit.end == len(content)
        await eventually(lambda: not list((tmp_path / "b" / "spool").iterdir()))
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        assert (await read(stub, JOURNAL)).content == content
    assert len(appends.acknowledged) > 10
    assert descriptors_under(tmp_path) == []


@pytest.mark.parametrize("seed", [3, 4])
async def test_broker_stopped_under_appends_leaves_them_whole_or_absent(
    tmp_path: Path, seed: int
) -> None:
    """A stop with hardly any grace cancels appends in staging, hashing and commit: I1–I3 hold, nothing stays open."""
    config = BrokerConfig(
        data_dir=tmp_path / "b",
        append_memory_bytes_max=1 << 20,
        staged_memory_bytes_max=4 << 20,
        stop_grace_seconds=0.0,
    )
    acknowledged: set[int] = set()
    sent, wait = 0, random.Random(seed)
    for _ in range(6):
        broker = Broker(config)
        async with broker, broker_stub(broker.address) as stub, TaskGroup() as group:
            await apply_specs(stub, journal_spec(JOURNAL, length=4 << 20))
            appends = _Appends(stub, seed)
            appends.sent = sent
            running = group.start_soon(appends.many(40, longest_seconds=30.0), name="appends")
            await asyncio.sleep(wait.uniform(0.02, 0.4))
            await broker.stop()
            running.cancel()
        acknowledged |= appends.acknowledged
        sent = appends.sent + 100
        gc.collect()
        assert descriptors_under(tmp_path) == []
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        found = _appends_in((await read(stub, JOURNAL)).content)
    assert acknowledged <= set(found)
    assert set(found.values()) <= {1}


async def test_read_given_up_while_its_file_is_opened_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that opens a fragment finishes after its reader is gone: its file is closed all the same."""
    entered, gate = threading.Event(), threading.Event()
    open_sealed = ContentFile.open_sealed

    def slowly(path: Path, *, sums: Sums | None = None) -> ContentFile:
        entered.set()
        assert gate.wait(20), "the gate was never opened"
        return open_sealed(path, sums=sums)

    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b")) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL, length=1024))
        for _ in range(2):
            await append(stub, JOURNAL, b"x" * 2000)
        monkeypatch.setattr(ContentFile, "open_sealed", staticmethod(slowly))
        reading = stub.Read(ReadRequest(journal=JOURNAL))
        await eventually(entered.is_set)
        reading.cancel()
        # Answered after the cancellation has arrived.
        await append(stub, JOURNAL)
        gate.set()
        await append(stub, JOURNAL, b"later")

        async def closed() -> bool:
            return not [name for name in descriptors_under(tmp_path) if name.endswith(".raw")]

        await eventually(closed)


async def test_read_of_a_journal_deleted_while_its_file_is_opened_ends_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fragment's file went with its journal between the look at the index and the opening: no failed disk."""
    entered, gate = threading.Event(), threading.Event()
    open_sealed = ContentFile.open_sealed

    def slowly(path: Path, *, sums: Sums | None = None) -> ContentFile:
        entered.set()
        assert gate.wait(20), "the gate was never opened"
        return open_sealed(path, sums=sums)

    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b")) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL, length=1024))
        for _ in range(2):
            await append(stub, JOURNAL, b"x" * 2000)
        monkeypatch.setattr(ContentFile, "open_sealed", staticmethod(slowly))
        reading = asyncio.gather(read(stub, JOURNAL))
        await eventually(entered.is_set)
        await stub.Apply(ApplyRequest(changes=[Change(delete=JOURNAL, expect_mod_revision=-1)]))
        await eventually(lambda: not list((tmp_path / "b" / "journals").iterdir()))
        gate.set()
        (got,) = await reading

    assert got.metadata == []


async def test_free_space_that_cannot_be_told_refuses_the_append_only(tmp_path: Path) -> None:
    """A disk that does not even tell its free space fails one append, not the broker."""
    disk = FailingDisk()
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b"), disk=disk) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL))
        # The first look is that of the journal's opening.
        disk.fail_at("free_bytes", 2)
        refused = await append(stub, JOURNAL, b"x")
        after = await append(stub, JOURNAL, b"y")

    assert refused.status == Status.FRAGMENT_STORE_UNHEALTHY
    assert (after.commit.begin, after.commit.end) == (0, 1)


async def test_barrier_that_keeps_a_suspension_does_not_end_it(tmp_path: Path) -> None:
    """KEEP acts on a partly suspended journal without waking it, and refuses content; a plain one wakes it."""
    level = JournalSpec.Suspend.PARTIAL
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b")) as broker,
        broker_stub(broker.address) as stub,
    ):
        spec = journal_spec(JOURNAL, suspend=JournalSpec.Suspend(level=level, offset=7))
        revision = (await apply_specs(stub, spec)).header.etcd.revision
        barrier = await append(stub, JOURNAL, suspend=AppendRequest.SUSPEND_KEEP)
        content = await append(stub, JOURNAL, b"x", suspend=AppendRequest.SUSPEND_KEEP)
        plain = await append(stub, JOURNAL)

    assert barrier.status == Status.OK
    assert barrier.header.etcd.revision == revision
    assert content.status == Status.NOT_ALLOWED
    assert content.header.etcd.revision == revision
    assert plain.commit.end == 7


@pytest.mark.parametrize("how", ["port taken", "given up"])
async def test_start_that_fails_leaves_nothing_open(tmp_path: Path, how: str) -> None:
    """A process that tries again must find the data unlocked, and itself not poorer in descriptors."""
    async with Broker(BrokerConfig(data_dir=tmp_path / "a")) as other:
        port = int(other.address.rpartition(":")[2]) if how == "port taken" else 0
        broker = Broker(BrokerConfig(data_dir=tmp_path / "b", port=port))
        with pytest.raises((EndpointError, TimeoutError)):
            async with asyncio.timeout(0 if how == "given up" else 20):
                await broker.__aenter__()
    gc.collect()
    assert descriptors_under(tmp_path) == []
