"""What the broker does by itself: closing fragments in time, and deleting old ones when told to."""

from __future__ import annotations

import time
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.wire.journal_pb2 import FragmentsRequest
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.eventually import eventually

JOURNAL = "a/journal"
HOUR_SECONDS = 3600


class _Clock:
    """The machine's time, moved ahead by the test."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def monotonic_seconds(self) -> float:
        """Return the machine's, seconds."""
        return time.monotonic()

    def wall_seconds(self) -> float:
        """Return the machine's and what the test added, seconds."""
        return time.time() + self.ahead_seconds


async def test_idle_fragment_is_closed_when_its_flush_interval_passes(tmp_path: Path) -> None:
    """A reader of sealed fragments must not wait for traffic: the window of the interval closes them."""
    clock = _Clock()
    config = BrokerConfig(data_dir=tmp_path / "b", maintenance_interval_seconds=0.05)
    spec = journal_spec(JOURNAL)
    spec.fragment.flush_interval.CopyFrom(Duration(seconds=HOUR_SECONDS))
    async with Broker(config, clock=clock) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, spec)
        await append(stub, JOURNAL, b"content")

        async def sealed() -> bool:
            response = await stub.ListFragments(FragmentsRequest(journal=JOURNAL))
            return [fragment.spec.mod_time > 0 for fragment in response.fragments] == [True]

        clock.ahead_seconds += HOUR_SECONDS

        await eventually(sealed)
        assert (await append(stub, JOURNAL, b"!")).commit.begin == 7


async def test_old_fragments_go_when_retention_is_on_but_never_the_newest(tmp_path: Path) -> None:
    """Deletion is oldest first and stops at the newest sealed fragment; offsets stay, over a restart too."""
    clock = _Clock()
    config = BrokerConfig(
        data_dir=tmp_path / "b", maintenance_interval_seconds=0.05, retention_enabled=True
    )
    spec = journal_spec(JOURNAL, length=1024)
    spec.fragment.retention.CopyFrom(Duration(seconds=HOUR_SECONDS))
    async with Broker(config, clock=clock) as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, spec)
        for _ in range(4):
            await append(stub, JOURNAL, b"z" * 2000)

        async def begins() -> list[int]:
            response = await stub.ListFragments(FragmentsRequest(journal=JOURNAL))
            return [fragment.spec.begin for fragment in response.fragments]

        async def shrunk() -> bool:
            return await begins() == [4000, 6000]

        before = await begins()
        clock.ahead_seconds += 2 * HOUR_SECONDS
        await eventually(shrunk)
        got = await read(stub, JOURNAL)
    clock.ahead_seconds = 0
    async with Broker(config, clock=clock) as broker, broker_stub(broker.address) as stub:
        after = await append(stub, JOURNAL, b"!")

    assert before == [0, 2000, 4000, 6000]
    assert (got.metadata[0].offset, len(got.content)) == (4000, 4000)
    assert (after.status, after.commit.begin) == (0, 8000)
