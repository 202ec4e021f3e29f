"""The broker as a process of its own, killed without warning while clients append and read.

Each append says who it is and how often its writer tried, so that afterwards every byte of the journal can be
accounted for: acknowledged appends are there at their offsets, others are whole or absent, nothing else exists.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.runtime.errors import EmbeddedServerError
from broadsheet.wire.journal_pb2 import (
    AppendResponse,
    FragmentsRequest,
    LabelSelector,
    ReadRequest,
    Status,
)
from broadsheet.wire.labels import label_set, value_of
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, next_message, read
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

JOURNAL = "killed/journal"
ROUNDS = 10
WRITERS = 6
SIZES = (1, 50, 3_000, 90_000, 400_000)
MAGIC = b"\xfeREC"


@dataclass(slots=True)
class _Ledger:
    """What the writers know."""

    acknowledged: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """By begin: end and content."""
    attempted: set[bytes] = field(default_factory=set)
    heads: list[int] = field(default_factory=list)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[EmbeddedBrokerProcess]:
    """A running broker process on its own data."""
    with EmbeddedBrokerProcess(tmp_path / "data") as running:
        yield running


def _record(writer: int, number: int, size: int) -> bytes:
    """Return content that proves itself: magic, total length, digest, body."""
    body = f"{writer}:{number}:".encode() + random.Random(f"{writer}:{number}").randbytes(size)
    digest = hashlib.sha1(body, usedforsecurity=False).digest()
    return MAGIC + len(body).to_bytes(4, "big") + digest + body


def _records(content: bytes) -> list[tuple[int, bytes]]:
    """Cut a journal into its records, checking each, and return them with their begins."""
    found, position = [], 0
    while position < len(content):
        assert content[position : position + 4] == MAGIC, f"no record begins at {position}"
        length = int.from_bytes(content[position + 4 : position + 8], "big")
        record = content[position : position + 28 + length]
        digest = hashlib.sha1(record[28:], usedforsecurity=False).digest()
        assert record[8:28] == digest, f"the record at {position} is torn"
        found.append((position, record))
        position += len(record)
    return found


async def _write_until_gone(
    stub: JournalAsyncStub, ledger: _Ledger, *, writer: int, first_number: int
) -> int:
    """Append record after record until the broker dies; return the next number."""
    for number in range(first_number, first_number + 10_000):
        record = _record(writer, number, SIZES[(writer + number) % len(SIZES)])
        ledger.attempted.add(record)
        try:
            response = await append(
                stub,
                JOURNAL,
                record[:1000],
                *([record[1000:]] if record[1000:] else []),
                union_registers=label_set(("last", f"{writer}.{number}")),
            )
        except grpc.aio.AioRpcError:
            return number + 1
        assert response.status == Status.OK
        ledger.acknowledged[response.commit.begin] = (response.commit.end, record)
        ledger.heads.append(response.commit.end)
    raise AssertionError("the broker was never killed")


async def _killed_after(process: EmbeddedBrokerProcess, ledger: _Ledger, appends: int) -> None:
    """Kill the broker once so many appends of this round are acknowledged."""
    target = len(ledger.acknowledged) + appends
    await eventually(
        lambda: len(ledger.acknowledged) >= target, timeout_seconds=60, interval_seconds=0.001
    )
    await asyncio.to_thread(process.kill)


async def test_broker_killed_during_appends_loses_and_invents_nothing(
    process: EmbeddedBrokerProcess,
) -> None:
    """I1-I7 and I9 over ten kills -9 in the midst of concurrent appends, small and large."""
    ledger, numbers, chance = _Ledger(), [0] * WRITERS, random.Random(4)
    async with broker_stub(process.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL, length=300_000))
    for _ in range(ROUNDS):
        async with broker_stub(process.address) as stub:
            killer = _killed_after(process, ledger, chance.randrange(1, 60))
            writers = [
                _write_until_gone(stub, ledger, writer=writer, first_number=numbers[writer])
                for writer in range(WRITERS)
            ]
            numbers, _ = await asyncio.gather(asyncio.gather(*writers), killer)
        await asyncio.to_thread(process.restart)
        await _check(process, ledger)


async def _check(process: EmbeddedBrokerProcess, ledger: _Ledger) -> None:
    async with broker_stub(process.address) as stub:
        got = await read(stub, JOURNAL)
        barrier = await append(stub, JOURNAL)
        fragments = await stub.ListFragments(FragmentsRequest(journal=JOURNAL))
    records = _records(got.content)
    by_begin = dict(records)
    for begin, (end, record) in ledger.acknowledged.items():
        assert by_begin.get(begin) == record, f"the acknowledged append at {begin} is lost"
        assert end == begin + len(record)
    assert {record for _, record in records} <= ledger.attempted, "a record was invented"
    assert len(set(by_begin.values())) == len(records), "a record is there twice"
    assert barrier.commit.end == len(got.content) >= max(ledger.heads)
    last = records[-1][1][28:].split(b":", 2)
    held = value_of(barrier.registers, "last")
    assert held == f"{last[0].decode()}.{last[1].decode()}", "registers are not the last append's"
    bounds = [(f.spec.begin, f.spec.end) for f in fragments.fragments]
    assert [begin for begin, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert {begin for begin, _ in bounds} <= by_begin.keys(), "a fragment splits an append"


async def test_broker_killed_keeps_fences_and_revisions(process: EmbeddedBrokerProcess) -> None:
    """I7, I10: a fence taken before the kill still holds after it, and revisions go on."""
    async with broker_stub(process.address) as stub:
        before = await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"mine", union_registers=label_set(("author", "new")))
    process.restart()
    async with broker_stub(process.address) as stub:
        stale = LabelSelector(include=label_set(("author", "old")))
        fenced = await append(stub, JOURNAL, b"stale", check_registers=stale)
        after = await apply_specs(stub, journal_spec(JOURNAL))

    assert fenced.status == Status.REGISTER_MISMATCH
    assert fenced.registers == label_set(("author", "new"))
    assert after.header.etcd.revision == before.header.etcd.revision + 1
    assert after.header.etcd.cluster_id == before.header.etcd.cluster_id


async def test_broker_terminated_ends_reads_cleanly_and_finishes_appends(
    process: EmbeddedBrokerProcess,
) -> None:
    """SIGTERM: a blocked reader sees a clean end, an append that said commit is answered."""
    async with broker_stub(process.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL))
        reader = stub.Read(ReadRequest(journal=JOURNAL, block=True), timeout=30)
        response: AppendResponse = await append(stub, JOURNAL, b"x")
        assert [(await next_message(reader)).offset for _ in range(2)] == [0, 0]
        _, end = await asyncio.gather(asyncio.to_thread(process.stop), reader.read())

    assert response.status == Status.OK
    assert end is grpc.aio.EOF
    assert await reader.code() == grpc.StatusCode.OK


def test_second_process_on_the_same_data_refuses_to_start(
    process: EmbeddedBrokerProcess, tmp_path: Path
) -> None:
    """I18: it names the directory and the process that has it; the first one goes on."""
    second = EmbeddedBrokerProcess(tmp_path / "data")

    with pytest.raises(EmbeddedServerError, match=rf"pid {process.pid}\) is using it"):
        second.start()

    assert process.is_running
