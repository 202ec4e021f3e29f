"""The broker with a disk that is slow, full or failing, and with data that was damaged."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from broadsheet.broker.config import DIRECT_COMMIT_BYTES_MAX, BrokerConfig, Durability
from broadsheet.broker.disk import Buffer, Disk
from broadsheet.broker.free_space import SMALL_BYTES_MAX
from broadsheet.broker.inline_commits import STALL_SECONDS
from broadsheet.broker.server import Broker
from broadsheet.wire.journal_pb2 import AppendRequest, ReadRequest, Status
from broadsheet.wire.validation_journal_response import validate_append_response
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, next_message, read
from tests.support.eventually import eventually
from tests.support.stepping_clock import SteppingClock

JOURNAL = "a/journal"
ON_LOOP_OR_THREADS = pytest.mark.parametrize(
    "direct_commit_bytes_max", [DIRECT_COMMIT_BYTES_MAX, 0], ids=["loop", "threads"]
)
"""Who makes small commits."""


class _Gate(Disk):
    """A disk whose syncs wait while the gate is shut, or fail."""

    def __init__(self) -> None:
        super().__init__(writes_durably=False)
        self.open = threading.Event()
        self.open.set()
        self.waiting = 0
        self.error: OSError | None = None
        self.free: int | None = None

    def sync_data(self, fd: int) -> None:
        """Wait for the gate, then sync or fail."""
        self.waiting += 1
        assert self.open.wait(20), "the gate was never opened"
        self.waiting -= 1
        if self.error is not None:
            raise self.error
        super().sync_data(fd)

    def free_bytes(self, directory: Path) -> int:
        """Return what the test says is free."""
        return super().free_bytes(directory) if self.free is None else self.free


class _Stalling(Disk):
    """A disk that takes its time when told to, by a clock of its own, and knows who wrote."""

    def __init__(self, clock: SteppingClock) -> None:
        super().__init__()
        self.stalls = False
        self.writers: list[int] = []
        self._clock = clock

    def write_durably(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write, at once or not."""
        self.writers.append(threading.get_ident())
        if self.stalls:
            self._clock.now_seconds += 2 * STALL_SECONDS
        return super().write_durably(fd, buffers, position)


async def test_disk_that_stalls_is_written_by_threads(tmp_path: Path) -> None:
    """The loop writes small appends itself until it had to wait for one; then everything else must go on meanwhile."""
    clock, loop_thread = SteppingClock(now_seconds=time.time()), threading.get_ident()
    disk = _Stalling(clock)
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b"), clock=clock, disk=disk) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"1")
        by_loop = set(disk.writers)
        disk.stalls = True
        await append(stub, JOURNAL, b"2")
        disk.stalls = False
        disk.writers.clear()
        await append(stub, JOURNAL, b"3")

        assert by_loop == {loop_thread}
        assert loop_thread not in disk.writers
        assert len(disk.writers) == 1
        assert (await read(stub, JOURNAL)).content == b"123"


async def test_append_given_up_during_its_commit_lands_whole(tmp_path: Path) -> None:
    """I2: the caller goes away while the content is on its way to the disk; the append is whole all the same."""
    disk = _Gate()
    content = bytes(range(256)) * 2000
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b"), disk=disk) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"first")
        disk.open.clear()
        call = stub.Append()
        for message in (AppendRequest(journal=JOURNAL), AppendRequest(content=content)):
            await call.write(message)
        await call.write(AppendRequest())
        await call.done_writing()
        await eventually(lambda: disk.waiting)
        call.cancel()
        other = asyncio.gather(append(stub, JOURNAL, b"last"))
        disk.open.set()

        ((response),) = await other
        assert response.commit.begin == 5 + len(content)
        assert (await read(stub, JOURNAL)).content == b"first" + content + b"last"


async def test_readers_see_nothing_before_it_is_durable(tmp_path: Path) -> None:
    """Head and registers become visible only after the sync; a barrier waits for what is before it (I16)."""
    disk = _Gate()
    # The loop, which opens the gate here, must not wait at it.
    config = BrokerConfig(data_dir=tmp_path / "b", direct_commit_bytes_max=0)
    async with (
        Broker(config, disk=disk) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"1")
        disk.open.clear()
        pending = asyncio.gather(append(stub, JOURNAL, b"2"))
        await eventually(lambda: disk.waiting)
        refused_later = asyncio.gather(append(stub, JOURNAL, b"3", offset=2), append(stub, JOURNAL))
        during = await read(stub, JOURNAL)
        disk.open.set()

        await pending
        by_offset, barrier = await refused_later
        assert during.content == b"1"
        # The early check saw the head 1, which the sync had not yet moved.
        assert by_offset.status == Status.WRONG_APPEND_OFFSET
        assert barrier.commit.end == 2


@ON_LOOP_OR_THREADS
async def test_failed_sync_is_never_acknowledged_and_heals_by_recovery(
    tmp_path: Path, direct_commit_bytes_max: int
) -> None:
    """I17: the append that met the error is refused with its text and leaves no byte; reads go on; later ones work."""
    disk = _Gate()
    config = BrokerConfig(data_dir=tmp_path / "b", direct_commit_bytes_max=direct_commit_bytes_max)
    async with (
        Broker(config, disk=disk) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"kept")
        tail = stub.Read(ReadRequest(journal=JOURNAL, block=True), timeout=20)
        assert (await next_message(tail)).write_head == 4
        assert (await next_message(tail)).content == b"kept"

        disk.error = OSError(5, "Input/output error")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await append(stub, JOURNAL, b"lost")
        during = await read(stub, JOURNAL)
        refused = await append(stub, JOURNAL, b"also refused")
        disk.error = None

        async def appended() -> bool:
            return (await append(stub, JOURNAL, b"healed")).status == Status.OK

        await eventually(appended)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "Input/output error" in (caught.value.details() or "")
        assert during.content == b"kept"
        assert refused.status == Status.FRAGMENT_STORE_UNHEALTHY
        assert "Input/output error" in refused.store_health_error
        assert (await next_message(tail)).fragment.begin == 4
        assert (await next_message(tail)).content == b"healed"
        tail.cancel()


@ON_LOOP_OR_THREADS
async def test_full_disk_refuses_appends_and_keeps_reading(
    tmp_path: Path, direct_commit_bytes_max: int
) -> None:
    """Below the free-space floor appends are refused in band; barriers and reads go on; space heals it."""
    disk = _Gate()
    config = BrokerConfig(data_dir=tmp_path / "b", direct_commit_bytes_max=direct_commit_bytes_max)
    async with Broker(config, disk=disk) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL))
        # So little more than the floor that it is not relied upon for long.
        disk.free = config.free_space_floor_bytes + SMALL_BYTES_MAX + 10
        await append(stub, JOURNAL, b"kept")
        disk.free = 1000
        refused = await append(stub, JOURNAL, b"no room")
        barrier = await append(stub, JOURNAL)
        content = (await read(stub, JOURNAL)).content
        disk.free = None
        healed = await append(stub, JOURNAL, b"!")

    validate_append_response(refused)
    assert refused.status == Status.FRAGMENT_STORE_UNHEALTHY
    assert (barrier.commit.end, content) == (4, b"kept")
    assert (healed.commit.begin, healed.commit.end) == (4, 5)


async def test_damage_is_declared_until_an_explicit_offset_accepts_it(tmp_path: Path) -> None:
    """The INDEX_HAS_GREATER_OFFSET protocol: refuse, report the logged end, accept it, jump over the hole."""
    config = BrokerConfig(data_dir=tmp_path / "b")
    parts = [bytes([65 + n]) * 2000 for n in range(3)]
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL, length=1024))
        for part in parts:
            await append(stub, JOURNAL, part)
    sorted((tmp_path / "b" / "journals").glob("*/*.raw"))[1].unlink()

    for _ in range(2):
        async with Broker(config) as broker, broker_stub(broker.address) as stub:
            refused = await append(stub, JOURNAL, b"x")
            head = await read(stub, JOURNAL, offset=-1)
            assert refused.status == Status.INDEX_HAS_GREATER_OFFSET
            assert (head.last_status, head.metadata[0].offset) == (
                Status.OFFSET_NOT_YET_AVAILABLE,
                6000,
            )
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        wrong = await append(stub, JOURNAL, offset=5999)
        reset = await append(stub, JOURNAL, offset=6000, suspend=AppendRequest.SUSPEND_KEEP)
        await append(stub, JOURNAL, b"after")
    async with Broker(config) as broker, broker_stub(broker.address) as stub:
        again = await append(stub, JOURNAL, b"!")
        got = await read(stub, JOURNAL)

    assert (wrong.status, reset.status, again.status) == (
        Status.WRONG_APPEND_OFFSET,
        Status.OK,
        Status.OK,
    )
    assert got.content == parts[0] + parts[2] + b"after!"
    assert [m.offset for m in got.metadata] == [0, 4000, 6000, 6005, 6006]


@pytest.mark.parametrize("durability", ["interval=20", "off"])
async def test_weaker_durability_keeps_everything_over_a_clean_stop(
    tmp_path: Path, durability: str
) -> None:
    """Under the weaker policies a clean stop loses nothing and leaves no hole."""
    config = BrokerConfig(data_dir=tmp_path / "b", durability=Durability.parse(durability))
    for number in range(3):
        async with Broker(config) as broker, broker_stub(broker.address) as stub:
            await apply_specs(stub, journal_spec(JOURNAL))
            response = await append(stub, JOURNAL, b"%d" % number)
            assert response.commit.begin == number
            got = await read(stub, JOURNAL)
    assert got.content == b"012"
