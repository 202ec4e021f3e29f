"""A broker that starts on a disk without a free byte: it serves reads, refuses the rest, and recovers by itself."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.journal import REOPEN_SECONDS
from broadsheet.broker.server import Broker
from broadsheet.broker.store import INLINE_BYTES_MAX
from broadsheet.wire.journal_pb2 import FragmentStoreHealthRequest, Status
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.failing_disk import FullDisk

SMALL, LARGE, UNUSED = "a/small", "a/large", "an/unused"
CONTENT = b"c" * (INLINE_BYTES_MAX + 5_000)


class _Clock:
    """The machine's time, moved ahead by the test."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def monotonic_seconds(self) -> float:
        """Return the machine's and what the test added, seconds."""
        return time.monotonic() + self.ahead_seconds

    def wall_seconds(self) -> float:
        """Return the machine's, seconds."""
        return time.time()


async def _written(directory: Path) -> None:
    async with (
        Broker(BrokerConfig(data_dir=directory)) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(
            stub, journal_spec(SMALL), journal_spec(LARGE, length=1024), journal_spec(UNUSED)
        )
        await append(stub, SMALL, b"first")
        for _ in range(2):
            await append(stub, LARGE, CONTENT)


async def test_start_on_a_full_disk_is_read_only_until_there_is_space(tmp_path: Path) -> None:
    """Plan: fill the disk while the broker is down; start it; free the disk.

    Reads are served from sealed and open fragments alike, appends and applies answer that the disk is full, and once
    it is not, the same broker takes both without a restart.
    """
    await _written(tmp_path)
    disk, clock = FullDisk(), _Clock()
    disk.is_full = True
    async with (
        Broker(BrokerConfig(data_dir=tmp_path), disk=disk, clock=clock) as broker,
        broker_stub(broker.address) as stub,
    ):
        assert (await read(stub, SMALL)).content == b"first"
        assert (await read(stub, LARGE)).content == 2 * CONTENT
        unused = await read(stub, UNUSED)
        assert unused.last_status == Status.OFFSET_NOT_YET_AVAILABLE
        refused = await append(stub, SMALL, b"second")
        assert refused.status == Status.FRAGMENT_STORE_UNHEALTHY
        assert "the disk is full" in refused.store_health_error
        with pytest.raises(grpc.aio.AioRpcError, match="free some space") as caught:
            await apply_specs(stub, journal_spec("another/journal"))
        health = await stub.FragmentStoreHealth(
            FragmentStoreHealthRequest(fragment_store="file:///")
        )
        assert health.status == Status.FRAGMENT_STORE_UNHEALTHY

        disk.is_full = False
        clock.ahead_seconds += REOPEN_SECONDS
        assert (await append(stub, SMALL, b"second")).commit.begin == 5
        await apply_specs(stub, journal_spec("another/journal"))
        assert (await read(stub, SMALL)).content == b"firstsecond"
        assert (await append(stub, UNUSED, b"!")).commit.end == 1
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        assert (await read(stub, SMALL)).content == b"firstsecond"
        assert (await read(stub, LARGE)).content == 2 * CONTENT


def _damage_log_of_first(directory: Path) -> None:
    """Flip a bit of the content in the log."""
    (log,) = (path for path in directory.rglob("commit-*") if b"first" in path.read_bytes())
    content = bytearray(log.read_bytes())
    content[content.index(b"first")] ^= 1
    log.write_bytes(content)


async def test_journal_that_needs_repair_waits_for_space(tmp_path: Path) -> None:
    """Damage cannot be declared on a full disk: what might jump over lost bytes is not served."""
    await _written(tmp_path)
    _damage_log_of_first(tmp_path)
    disk = FullDisk()
    disk.is_full = True
    async with (
        Broker(BrokerConfig(data_dir=tmp_path), disk=disk) as broker,
        broker_stub(broker.address) as stub,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="needs repair") as caught:
            await read(stub, SMALL)
        assert (await read(stub, LARGE)).content == 2 * CONTENT
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
