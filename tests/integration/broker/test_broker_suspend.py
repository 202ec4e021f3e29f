"""Suspension by appends, listing by prefix, and reads from a time in the future: answered as Gazette's brokers do.

Source: gazette/core broker/append_fsm_test.go, list_apply_api_test.go (behaviours; the tests are our own).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.preconditions import suspension_level
from broadsheet.broker.server import Broker
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.runtime.clock import SystemClock
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    JournalSpec,
    LabelSelector,
    ListRequest,
    Status,
)
from broadsheet.wire.labels import label_set
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

JOURNAL = "a/journal"
NOW, IF_FLUSHED = AppendRequest.SUSPEND_NOW, AppendRequest.SUSPEND_IF_FLUSHED
NO_RESUME = AppendRequest.SUSPEND_NO_RESUME
PARTIAL, FULL = JournalSpec.Suspend.PARTIAL, JournalSpec.Suspend.FULL
DAY_SECONDS = 86_400.0
FAR_FUTURE = 1 << 40
"""Unix seconds."""


@pytest.fixture
async def stub(broker: EmbeddedBroker) -> AsyncIterator[JournalAsyncStub]:
    """A stub of a broker that serves one journal."""
    async with broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL))
        yield stub


async def suspension(stub: JournalAsyncStub) -> JournalSpec.Suspend:
    """Return what the journal's spec says."""
    request = ListRequest(selector=LabelSelector(include=label_set(("name", JOURNAL))))
    (answer,) = [answer async for answer in stub.List(request)]
    return answer.journals[0].spec.suspend


@pytest.mark.parametrize(
    ("suspend", "is_empty", "flushed_seconds", "interval_seconds", "expected"),
    [
        (NOW, True, None, 0.0, FULL),
        (IF_FLUSHED, True, None, 0.0, FULL),
        (NOW, False, None, 0.0, PARTIAL),
        (IF_FLUSHED, False, None, 0.0, None),
        (IF_FLUSHED, False, DAY_SECONDS, 0.0, None),
        (IF_FLUSHED, False, DAY_SECONDS + 1, 0.0, PARTIAL),
        (IF_FLUSHED, False, 61.0, 60.0, PARTIAL),
        (IF_FLUSHED, False, 59.0, 60.0, None),
        (AppendRequest.SUSPEND_RESUME, True, None, 0.0, None),
        (AppendRequest.SUSPEND_KEEP, True, None, 0.0, None),
        (NO_RESUME, True, None, 0.0, None),
    ],
)
def test_level_of_a_suspension(
    suspend: int,
    is_empty: bool,
    flushed_seconds: float | None,
    interval_seconds: float,
    expected: int | None,
) -> None:
    """An empty journal needs no broker at all; one with content stays readable; unflushed content keeps it up."""
    level = suspension_level(
        suspend,
        is_empty=is_empty,
        flushed_seconds=flushed_seconds,
        flush_interval_seconds=interval_seconds,
    )

    assert level == expected


async def test_journal_with_content_is_suspended_partly(stub: JournalAsyncStub) -> None:
    """`gazctl journals suspend --force`: it answers SUSPENDED and stays readable; NO_RESUME is refused, and a plain
    append wakes it where it was.
    """
    await append(stub, JOURNAL, b"12345")

    unflushed = await append(stub, JOURNAL, suspend=IF_FLUSHED)
    forced = await append(stub, JOURNAL, suspend=NOW)
    again = await append(stub, JOURNAL, suspend=NOW)
    found = await suspension(stub)
    refused = await append(stub, JOURNAL, b"x", suspend=NO_RESUME)

    assert unflushed.status == Status.OK
    assert (forced.status, again.status) == (Status.SUSPENDED, Status.SUSPENDED)
    assert (found.level, found.offset) == (PARTIAL, 5)
    assert refused.status == Status.SUSPENDED
    assert (await read(stub, JOURNAL)).content == b"12345"
    woken = await append(stub, JOURNAL, b"678")
    assert (woken.status, woken.commit.begin) == (Status.OK, 5)
    assert (await suspension(stub)).level == JournalSpec.Suspend.NONE
    assert (await append(stub, JOURNAL, b"9", suspend=NO_RESUME)).status == Status.OK


async def test_journal_without_content_is_suspended_fully(
    stub: JournalAsyncStub, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """`gazctl journals suspend` of an empty journal: reads answer SUSPENDED then, also after a restart."""
    assert (await append(stub, JOURNAL, suspend=IF_FLUSHED)).status == Status.SUSPENDED
    assert (await suspension(stub)).level == FULL
    assert (await read(stub, JOURNAL)).last_status == Status.SUSPENDED
    assert (await append(stub, JOURNAL, suspend=NOW)).status == Status.SUSPENDED
    await broker.stop()

    async with EmbeddedBroker(tmp_path / "broker") as again, broker_stub(again.address) as other:
        assert (await read(other, JOURNAL)).last_status == Status.SUSPENDED
        assert (await append(other, JOURNAL, b"x")).status == Status.OK
        assert (await read(other, JOURNAL)).content == b"x"


class _HoursLater(SystemClock):
    """The time of a machine whose journals were left alone for two hours."""

    def wall_seconds(self) -> float:
        """Return Unix seconds."""
        return super().wall_seconds() + 7200.0


async def test_content_that_is_flushed_for_long_enough_lets_a_journal_be_suspended(
    stub: JournalAsyncStub, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Without --force only journals that nobody writes to are suspended: their newest fragment tells, by its age."""
    spec = journal_spec(JOURNAL)
    spec.fragment.flush_interval.CopyFrom(Duration(seconds=3600))
    await apply_specs(stub, spec)
    await append(stub, JOURNAL, b"12345")
    await broker.stop()  # A start seals what was open.

    async with EmbeddedBroker(tmp_path / "broker") as again, broker_stub(again.address) as other:
        assert (await append(other, JOURNAL, suspend=IF_FLUSHED)).status == Status.OK

    config = BrokerConfig(data_dir=tmp_path / "broker")
    async with Broker(config, clock=_HoursLater()) as later, broker_stub(later.address) as other:
        assert (await append(other, JOURNAL, suspend=IF_FLUSHED)).status == Status.SUSPENDED


async def test_prefix_without_a_slash_is_refused(stub: JournalAsyncStub) -> None:
    """`prefix=a` would be taken for "all whose names begin with a"; Gazette's brokers refuse it, and so do we."""
    for part in ("include", "exclude"):
        selector = LabelSelector(**{part: label_set(("prefix", "a"))})
        with pytest.raises(grpc.aio.AioRpcError, match="ends in /") as caught:
            async for _ in stub.List(ListRequest(selector=selector)):
                raise AssertionError("nothing may be listed")
        assert f"selector.{part}" in (caught.value.details() or "")
    selector = LabelSelector(include=label_set(("prefix", "a/")))
    (answer,) = [answer async for answer in stub.List(ListRequest(selector=selector))]
    assert [journal.spec.name for journal in answer.journals] == [JOURNAL]


async def test_read_from_a_time_in_the_future_stands_behind_what_it_passes_over(
    stub: JournalAsyncStub, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """What was sealed before that time is passed over, and the answer says so; what is open has no time yet."""
    await append(stub, JOURNAL, b"12345")
    await broker.stop()  # A start seals what was open.

    async with EmbeddedBroker(tmp_path / "broker") as again, broker_stub(again.address) as other:
        passed = (await read(other, JOURNAL, begin_mod_time=FAR_FUTURE)).metadata[-1]
        await append(other, JOURNAL, b"678")
        got = await read(other, JOURNAL, begin_mod_time=FAR_FUTURE)

    assert (passed.status, passed.offset, passed.write_head) == (
        Status.OFFSET_NOT_YET_AVAILABLE,
        5,
        5,
    )
    assert got.content == b"678"
