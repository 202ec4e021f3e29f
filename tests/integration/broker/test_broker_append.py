"""The Append RPC over a real socket: the vectors of Gazette's append tests that concern one broker.

Source: gazette/core broker/append_api_test.go, append_fsm_test.go (behaviours; the tests are our own).
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.wire.journal_pb2 import AppendRequest, JournalSpec, LabelSelector, LabelSet, Status
from broadsheet.wire.labels import label_set
from broadsheet.wire.validation_journal_response import validate_append_response
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read, send_append

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

JOURNAL = "a/journal"


@pytest.fixture
async def stub(broker: EmbeddedBroker) -> AsyncIterator[JournalAsyncStub]:
    """A stub of a broker that serves one journal."""
    async with broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL))
        yield stub


async def test_append_two_chunks_lands_as_one_span(stub: JournalAsyncStub) -> None:
    """Offsets, sum, counts and registers of the answer are exactly those of the protocol, without meta."""
    response = await append(stub, f"{JOURNAL};meta", b"foo", b"bar")

    validate_append_response(response)
    digest = struct.unpack(">QQI", hashlib.sha1(b"foobar", usedforsecurity=False).digest())
    commit = response.commit
    assert (response.status, commit.journal, commit.begin, commit.end) == (Status.OK, JOURNAL, 0, 6)
    assert (commit.sum.part1, commit.sum.part2, commit.sum.part3) == digest
    assert (response.total_chunks, response.delayed_chunks) == (3, 0)
    assert response.HasField("registers")
    assert (await read(stub, JOURNAL)).content == b"foobar"


async def test_append_of_nothing_is_a_barrier(stub: JournalAsyncStub) -> None:
    """A zero-byte append answers the head, with the SHA-1 of nothing rather than an all-zero sum."""
    await append(stub, JOURNAL, b"content")

    response = await append(stub, JOURNAL)

    assert (response.commit.begin, response.commit.end) == (7, 7)
    assert response.commit.sum.part1 == 0xDA39A3EE5E6B4B0D
    assert response.total_chunks == 1


async def test_append_registers_follow_check_subtract_union(stub: JournalAsyncStub) -> None:
    """Each step sees the last one's registers; a mismatch returns them and changes nothing."""
    first = await append(stub, JOURNAL, b"1", union_registers=label_set(("AA", "11"), ("BB", "22")))
    second = await append(
        stub,
        JOURNAL,
        b"2",
        check_registers=LabelSelector(include=label_set(("AA", "11"))),
        subtract_registers=label_set(("AA", "11"), ("BB", "XYZ")),
        union_registers=label_set(("CC", "33")),
    )
    third = await append(
        stub, JOURNAL, b"3", check_registers=LabelSelector(include=label_set(("AA", "11")))
    )

    assert first.registers == label_set(("AA", "11"), ("BB", "22"))
    assert second.registers == label_set(("BB", "22"), ("CC", "33"))
    assert third.status == Status.REGISTER_MISMATCH
    assert third.registers == second.registers
    assert (await read(stub, JOURNAL)).content == b"12"


async def test_append_empty_registers_satisfy_any_check(stub: JournalAsyncStub) -> None:
    """A journal without registers accepts every holder of a lock: the set is empty after total loss."""
    response = await append(
        stub, JOURNAL, b"x", check_registers=LabelSelector(include=label_set(("AA", "11")))
    )

    assert response.status == Status.OK
    assert response.registers == LabelSet()


async def test_append_racing_for_one_offset_lets_one_through(stub: JournalAsyncStub) -> None:
    """I8: of many appends that demand the same offset or register, exactly one is committed."""
    await append(stub, JOURNAL, b"start")

    by_offset = await asyncio.gather(
        *(append(stub, JOURNAL, f"{n:02}".encode(), offset=5) for n in range(16))
    )
    fence = LabelSelector(exclude=label_set(("owner", "")))
    await append(stub, JOURNAL, b"!", union_registers=label_set(("epoch", "1")))
    by_register = await asyncio.gather(
        *(
            append(
                stub,
                JOURNAL,
                b"c",
                check_registers=fence,
                union_registers=label_set(("owner", str(n))),
            )
            for n in range(16)
        )
    )

    assert sorted(r.status for r in by_offset) == [Status.OK] + [Status.WRONG_APPEND_OFFSET] * 15
    assert sorted(r.status for r in by_register) == [Status.OK] + [Status.REGISTER_MISMATCH] * 15


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([AppendRequest(journal=JOURNAL), AppendRequest(content=b"x")], "unexpected EOF"),
        (
            [AppendRequest(journal=JOURNAL), AppendRequest(), AppendRequest(content=b"x")],
            "expected a half-close",
        ),
        (
            [AppendRequest(journal=JOURNAL), AppendRequest(journal=JOURNAL), AppendRequest()],
            "only content",
        ),
        (
            [AppendRequest(journal=JOURNAL, union_registers=LabelSet()), AppendRequest()],
            "registers change only with content",
        ),
        ([AppendRequest(journal="/bad")], "journal"),
        ([AppendRequest(journal=JOURNAL, offset=-1)], "offset"),
        ([], "unexpected EOF"),
    ],
)
async def test_append_stream_fault_rolls_back(
    stub: JournalAsyncStub, messages: list[AppendRequest], text: str
) -> None:
    """A client that breaks the stream's rules gets UNKNOWN with the reason, and no byte of it stays."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send_append(stub, messages)

    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert text in (caught.value.details() or "")
    assert (await append(stub, JOURNAL)).commit.end == 0


async def test_append_cancelled_after_its_commit_intent_rolls_back(stub: JournalAsyncStub) -> None:
    """Without a clean half-close nothing is committed, even after the empty chunk."""
    call = stub.Append()
    for message in (AppendRequest(journal=JOURNAL), AppendRequest(content=b"x"), AppendRequest()):
        await call.write(message)
    call.cancel()

    assert (await append(stub, JOURNAL)).commit.end == 0


async def test_append_stalled_sender_is_cut_off(stub: JournalAsyncStub) -> None:
    """A client that sends nothing for a second cannot pin staged content."""
    call = stub.Append(timeout=10)
    await call.write(AppendRequest(journal=JOURNAL))
    await call.write(AppendRequest(content=b"x"))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call

    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert "stalled" in (caught.value.details() or "")


async def test_append_refusals_are_answers(stub: JournalAsyncStub) -> None:
    """Conditions that the broker can name are statuses with a valid header, not gRPC errors."""
    await append(stub, JOURNAL, b"12345")
    await apply_specs(stub, journal_spec("read/only", flags=JournalSpec.O_RDONLY))
    full = JournalSpec.Suspend(level=JournalSpec.Suspend.FULL)
    await apply_specs(stub, journal_spec("sus/pended", suspend=full))

    answers = [
        await append(stub, "not/there", b"x"),
        await send_append(stub, [AppendRequest(content=b"x")]),
        await append(stub, JOURNAL, b"x", offset=4),
        await append(stub, JOURNAL, b"x", suspend=AppendRequest.SUSPEND_KEEP),
        await append(stub, "read/only", b"x"),
        await append(stub, "sus/pended", b"x", suspend=AppendRequest.SUSPEND_KEEP),
        await append(stub, "sus/pended", suspend=AppendRequest.SUSPEND_NO_RESUME),
    ]

    for answer in answers:
        validate_append_response(answer)
    assert [answer.status for answer in answers] == [
        Status.JOURNAL_NOT_FOUND,
        Status.JOURNAL_NOT_FOUND,
        Status.WRONG_APPEND_OFFSET,
        Status.NOT_ALLOWED,
        Status.NOT_ALLOWED,
        Status.SUSPENDED,
        Status.SUSPENDED,
    ]
    assert (await append(stub, "read/only")).status == Status.OK


async def test_append_resumes_a_suspended_journal_at_its_offset(stub: JournalAsyncStub) -> None:
    """A plain append wakes the journal: the level clears, and content goes on at the stored offset."""
    suspend = JournalSpec.Suspend(level=JournalSpec.Suspend.FULL, offset=1000)
    await apply_specs(stub, journal_spec("sus/pended", suspend=suspend))

    response = await append(stub, "sus/pended", b"awake")

    assert (response.commit.begin, response.commit.end) == (1000, 1005)
    got = await read(stub, "sus/pended")
    assert got.metadata[0].offset == 1000
    assert got.content == b"awake"


async def test_append_larger_than_memory_and_fragment_stays_whole(tmp_path: Path) -> None:
    """Content beyond the memory bound goes through a file, in one piece, and is the fragment it should be."""
    config = BrokerConfig(
        data_dir=tmp_path / "small",
        append_memory_bytes_max=1 << 20,
        staged_memory_bytes_max=1 << 21,
    )
    chunk = bytes(range(256)) * 4096
    async with (
        EmbeddedBroker(config.data_dir, config=config) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL, length=1 << 20))

        spooled = await append(stub, JOURNAL, *([chunk] * 5))
        adopted = await append(
            stub, JOURNAL, *([chunk] * 20), union_registers=label_set(("who", "me"))
        )
        small = await append(stub, JOURNAL, b"tail")

        got = await read(stub, JOURNAL)
        assert (spooled.commit.end, adopted.commit.end) == (5 << 20, 25 << 20)
        assert small.registers == label_set(("who", "me"))
        assert got.content == chunk * 25 + b"tail"
        bounds = [(m.fragment.begin, m.fragment.end) for m in got.metadata[:-1]]
        assert bounds == [(0, 5 << 20), (5 << 20, 25 << 20), (25 << 20, (25 << 20) + 4)]
    assert not list((tmp_path / "small" / "spool").iterdir())


async def test_append_throttled_journal_holds_back_without_failing(stub: JournalAsyncStub) -> None:
    """The journal's own maximum rate delays chunks, counts them, and never trips the minimum rate."""
    await apply_specs(stub, journal_spec("slow/one", max_append_rate=100_000))

    response = await append(stub, "slow/one", b"x" * 100_000, b"y" * 30_000)

    assert (response.status, response.total_chunks, response.delayed_chunks) == (Status.OK, 3, 1)


async def test_append_waits_for_a_future_revision(stub: JournalAsyncStub) -> None:
    """`min_etcd_revision` makes an append wait for the Apply it depends on."""
    applied = await apply_specs(stub, journal_spec("oth/er"))
    revision = applied.header.etcd.revision

    waiting = asyncio.gather(append(stub, "new/one", b"x", min_etcd_revision=revision + 1))
    await append(stub, JOURNAL, b"y")
    assert not waiting.done()
    await apply_specs(stub, journal_spec("new/one"))

    assert [r.status for r in await waiting] == [Status.OK]


async def test_replicate_is_unimplemented(stub: JournalAsyncStub) -> None:
    """There is no peer to replicate with, and the broker says so."""
    call = stub.Replicate(timeout=5)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()

    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
