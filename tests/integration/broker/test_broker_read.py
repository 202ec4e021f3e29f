"""The Read and ListFragments RPCs over a real socket.

Source: gazette/core broker/read_api_test.go, fragments_api_test.go, fragment/index_test.go (behaviours).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.wire.journal_pb2 import (
    ApplyRequest,
    FragmentsRequest,
    FragmentStoreHealthRequest,
    Header,
    JournalSpec,
    ProcessSpec,
    ReadRequest,
    Route,
    Status,
)
from broadsheet.wire.read_metadata import BRIEF_TAIL, LINGER
from broadsheet.wire.validation_journal_response import (
    validate_fragments_response,
    validate_read_response,
    validate_store_health_response,
)
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, next_message, read

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

JOURNAL = "a/journal"
KIB = b"x" * 1024


@pytest.fixture
async def stub(broker: EmbeddedBroker) -> AsyncIterator[JournalAsyncStub]:
    """A stub of a broker that serves one journal of short fragments."""
    async with broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL, length=1024))
        yield stub


async def test_read_metadata_precedes_all_its_bytes(stub: JournalAsyncStub) -> None:
    """I13: each metadata message is followed by exactly its bytes; only the first has the header."""
    for part in (b"a" * 2000, b"b" * 3000, b"c" * 100):
        await append(stub, JOURNAL, part)

    got = await read(stub, f"{JOURNAL};meta", offset=10)

    for message in got.metadata:
        validate_read_response(message)
    *content, last = got.metadata
    assert [(m.offset, m.fragment.begin, m.fragment.end) for m in content] == [
        (10, 0, 2000),
        (2000, 2000, 5000),
        (5000, 5000, 5100),
    ]
    assert [m.HasField("header") for m in got.metadata] == [True, False, False, False]
    assert {m.fragment.journal for m in content} == {JOURNAL}
    assert got.content == (b"a" * 2000 + b"b" * 3000 + b"c" * 100)[10:]
    assert [offset for offset, _ in got.chunks] == [10, 2000, 5000]
    assert (last.status, last.offset, last.write_head) == (
        Status.OFFSET_NOT_YET_AVAILABLE,
        5100,
        5100,
    )


async def test_read_growing_fragment_shows_the_sum_so_far(stub: JournalAsyncStub) -> None:
    """A blocked reader sees the open fragment grow: same begin, larger end, the sum over all of it."""
    call = stub.Read(ReadRequest(journal=JOURNAL, block=True), timeout=10)
    seen = []
    for text in (b"one", b"two"):
        await append(stub, JOURNAL, text)
        metadata, chunk = await next_message(call), await next_message(call)
        seen.append((metadata.fragment.begin, metadata.fragment.end, chunk.offset, chunk.content))
    first_part = int.from_bytes(hashlib.sha1(b"onetwo", usedforsecurity=False).digest()[:8], "big")

    assert seen == [(0, 3, 0, b"one"), (0, 6, 3, b"two")]
    assert metadata.fragment.sum.part1 == first_part
    call.cancel()


async def test_reader_that_takes_a_brief_tail_is_told_of_each_fragment_once(
    stub: JournalAsyncStub,
) -> None:
    """At the tail of the open fragment content comes alone, if it is little; what is long, and the next fragment, are
    described first.
    """
    call = stub.Read(ReadRequest(journal=JOURNAL, block=True), timeout=10, metadata=(BRIEF_TAIL,))
    seen = []
    for text, messages in ((b"one", 2), (b"two", 1), (b"x" * 40_000, 2), (b"next", 2), (b"!", 1)):
        await append(stub, JOURNAL, text)
        for _ in range(messages):
            message = await next_message(call)
            seen.append((message.offset, message.fragment.end or len(message.content)))

    assert seen == [
        *((0, 3), (0, 3)),
        (3, 3),
        *((6, 40_006), (6, 40_000)),
        *((40_006, 40_010), (40_006, 4)),
        (40_010, 1),
    ]
    call.cancel()


async def test_reader_that_lingers_is_sent_what_follows_at_once_with_it(
    stub: JournalAsyncStub,
) -> None:
    """Two appends, one behind the other, are one content; in one round at least, for they may take longer than that."""
    metadata = (BRIEF_TAIL, (LINGER, "250"))
    call = stub.Read(ReadRequest(journal=JOURNAL, block=True), timeout=30, metadata=metadata)
    await append(stub, JOURNAL, b"first")
    await next_message(call)
    assert (await next_message(call)).content == b"first"

    for _ in range(20):
        await append(stub, JOURNAL, b"one")
        await append(stub, JOURNAL, b"two")
        content = (await next_message(call)).content
        if content == b"onetwo":
            break
        assert (content, (await next_message(call)).content) == (b"one", b"two")
    else:
        raise AssertionError("no round was sent at once")
    call.cancel()


@pytest.mark.parametrize("linger", ["251", "-1", "0.5", "soon"])
async def test_read_that_lingers_too_long_or_oddly_is_refused(
    stub: JournalAsyncStub, linger: str
) -> None:
    """As any malformed request is; the error names the metadata and says what was expected."""
    call = stub.Read(ReadRequest(journal=JOURNAL), timeout=10, metadata=((LINGER, linger),))

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await next_message(call)

    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert ": expected " in (refused.value.details() or "")


@pytest.mark.parametrize(
    ("parameters", "content", "status", "offset"),
    [
        ({"offset": -1}, b"", Status.OFFSET_NOT_YET_AVAILABLE, 6),
        ({"offset": 9}, b"", Status.OFFSET_NOT_YET_AVAILABLE, 9),
        ({"end_offset": 4}, b"abcd", Status.OK, 0),
        ({"offset": 4, "end_offset": 4}, b"", Status.OK, 4),
        ({"offset": 2, "metadata_only": True, "block": True}, b"", Status.OK, 2),
        ({"end_offset": 6, "block": True}, b"abcdef", Status.OK, 0),
    ],
)
async def test_read_options_end_the_stream(
    stub: JournalAsyncStub,
    parameters: dict[str, int],
    content: bytes,
    status: int,
    offset: int,
) -> None:
    """Each way to end a read ends it there, cleanly, with the documented last message."""
    await append(stub, JOURNAL, b"abcdef")

    got = await read(stub, JOURNAL, **parameters)

    assert (got.content, got.last_status, got.metadata[-1].offset) == (content, status, offset)


async def test_read_blocked_beyond_head_waits_for_end_offset(stub: JournalAsyncStub) -> None:
    """With `block`, the stream waits for the bytes up to `end_offset` and then ends."""
    reading = asyncio.gather(read(stub, JOURNAL, block=True, end_offset=6))
    for part in (b"ab", b"cd", b"efgh"):
        await append(stub, JOURNAL, part)

    assert [got.content for got in await reading] == [b"abcdef"]


async def test_read_refusals_are_single_answers(stub: JournalAsyncStub) -> None:
    """A refusal is one message with a header, then the clean end."""
    full = JournalSpec.Suspend(level=JournalSpec.Suspend.FULL)
    partial = JournalSpec.Suspend(level=JournalSpec.Suspend.PARTIAL)
    await apply_specs(
        stub,
        journal_spec("write/only", flags=JournalSpec.O_WRONLY),
        journal_spec("sus/full", suspend=full),
        journal_spec("sus/partial", suspend=partial),
    )

    results = [
        await read(stub, name) for name in ("not/there", "write/only", "sus/full", "sus/partial")
    ]

    assert [got.last_status for got in results] == [
        Status.JOURNAL_NOT_FOUND,
        Status.NOT_ALLOWED,
        Status.SUSPENDED,
        Status.OFFSET_NOT_YET_AVAILABLE,
    ]
    assert all(len(got.metadata) == 1 and got.metadata[0].HasField("header") for got in results)
    assert results[0].metadata[0].header.route.primary == -1


@pytest.mark.parametrize(
    "request_",
    [
        ReadRequest(journal="/bad"),
        ReadRequest(journal=JOURNAL, offset=-2),
        ReadRequest(journal=JOURNAL, offset=5, end_offset=3),
        ReadRequest(
            journal=JOURNAL,
            header=Header(
                process_id=ProcessSpec.ID(zone="z", suffix="another"),
                route=Route(primary=-1),
                etcd=Header.Etcd(cluster_id=5, member_id=1, revision=1, raft_term=1),
            ),
        ),
    ],
)
async def test_read_malformed_request_is_refused(
    stub: JournalAsyncStub, request_: ReadRequest
) -> None:
    """Bad requests, and those proxied to the wrong cluster, are gRPC UNKNOWN as with Gazette."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Read(request_, timeout=5).read()

    assert caught.value.code() == grpc.StatusCode.UNKNOWN


async def test_read_blocked_reader_wakes_for_commit_delete_and_stop(tmp_path: Path) -> None:
    """I12: no wake-up is lost; deletion and stop end the stream cleanly without a status."""
    async with EmbeddedBroker(tmp_path / "data") as broker, broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec("one/a"), journal_spec("two/b"))
        deleted = stub.Read(ReadRequest(journal="one/a", block=True), timeout=20)
        stopped = stub.Read(ReadRequest(journal="two/b", block=True), timeout=20)
        for name, call in (("one/a", deleted), ("two/b", stopped)):
            for number in range(50):
                await append(stub, name, b"%02d" % number)
                while not (message := await next_message(call)).content:
                    assert message.status == Status.OK
                assert message.content == b"%02d" % number

        change = ApplyRequest.Change(delete="one/a", expect_mod_revision=-1)
        await stub.Apply(ApplyRequest(changes=[change]))
        after_delete = await deleted.read()
        await broker.stop()
        after_stop = await stopped.read()

    assert after_delete is grpc.aio.EOF
    assert after_stop is grpc.aio.EOF
    assert (await stopped.code(), await deleted.code()) == (
        grpc.StatusCode.OK,
        grpc.StatusCode.OK,
    )


async def test_read_recreated_journal_shows_no_old_byte(stub: JournalAsyncStub) -> None:
    """I11: a journal of the same name starts empty at offset zero."""
    await append(stub, JOURNAL, b"old", union_registers={"labels": [{"name": "AA"}]})
    change = ApplyRequest.Change(delete=JOURNAL, expect_mod_revision=-1)
    await stub.Apply(ApplyRequest(changes=[change]))
    await apply_specs(stub, journal_spec(JOURNAL))

    response = await append(stub, JOURNAL, b"new!")

    assert (response.commit.begin, response.commit.end, len(response.registers.labels)) == (0, 4, 0)
    assert (await read(stub, JOURNAL)).content == b"new!"


async def test_read_stalled_reader_blocks_nobody(stub: JournalAsyncStub) -> None:
    """A reader that takes nothing is held back by flow control; appends and other readers go on."""
    block = bytes(1 << 20)
    await append(stub, JOURNAL, *([block] * 8))
    stalled = [stub.Read(ReadRequest(journal=JOURNAL), timeout=20) for _ in range(4)]

    response = await append(stub, JOURNAL, b"tail")

    assert response.status == Status.OK
    assert len((await read(stub, JOURNAL)).content) == (8 << 20) + 4
    for call in stalled:
        call.cancel()


async def test_fragments_tile_the_journal_and_name_their_content(
    broker: EmbeddedBroker, stub: JournalAsyncStub
) -> None:
    """I9: fragments cover [0, head) without overlap, split no append, and their names hash their bytes."""
    for size in (600, 600, 1500, 10, 2000, 1):
        await append(stub, JOURNAL, b"z" * size)

    response = await stub.ListFragments(FragmentsRequest(journal=JOURNAL))

    validate_fragments_response(response)
    bounds = [(f.spec.begin, f.spec.end) for f in response.fragments]
    assert bounds == [(0, 1200), (1200, 2700), (2700, 4710), (4710, 4711)]
    files = sorted((broker.broker.data_dir / "journals").glob("*/*.raw"))
    assert len(files) == 3
    for file in files:
        digest = hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
        assert file.stem.endswith(digest)
    assert [f.spec.mod_time > 0 for f in response.fragments] == [True, True, True, False]


async def test_fragments_pages_join_to_the_whole(stub: JournalAsyncStub) -> None:
    """Pages follow each other by token; a token between fragments or beyond the end is fine."""
    for _ in range(5):
        await append(stub, JOURNAL, b"z" * 1500)

    token, begins, pages = 0, [], 0
    while True:
        request = FragmentsRequest(journal=JOURNAL, page_limit=2, next_page_token=token)
        page = await stub.ListFragments(request)
        begins += [f.spec.begin for f in page.fragments]
        pages, token = pages + 1, page.next_page_token
        if not token:
            break
    between = await stub.ListFragments(FragmentsRequest(journal=JOURNAL, next_page_token=1501))
    beyond = await stub.ListFragments(FragmentsRequest(journal=JOURNAL, next_page_token=10**9))

    assert (begins, pages) == ([0, 1500, 3000, 4500, 6000], 3)
    assert between.fragments[0].spec.begin == 3000
    assert (len(beyond.fragments), beyond.next_page_token) == (0, 0)


async def test_fragments_filter_by_time(stub: JournalAsyncStub) -> None:
    """Lower bounds keep local fragments; an upper bound drops them and includes its own second."""
    for _ in range(3):
        await append(stub, JOURNAL, b"z" * 1500)
    everything = await stub.ListFragments(FragmentsRequest(journal=JOURNAL))
    sealed_at = max(f.spec.mod_time for f in everything.fragments)

    async def count(*, begin_mod_time: int = 0, end_mod_time: int = 0) -> int:
        request = FragmentsRequest(
            journal=JOURNAL, begin_mod_time=begin_mod_time, end_mod_time=end_mod_time
        )
        return len((await stub.ListFragments(request)).fragments)

    assert await count(begin_mod_time=sealed_at + 100) == 1
    assert await count(end_mod_time=sealed_at) == 2
    assert await count(end_mod_time=1) == 0
    late = await read(stub, JOURNAL, begin_mod_time=sealed_at + 100)
    assert late.metadata[0].offset == 3000


async def test_store_health_probes_the_disk(stub: JournalAsyncStub) -> None:
    """Any store stands for the broker's own disk, and a malformed one is refused."""
    response = await stub.FragmentStoreHealth(
        FragmentStoreHealthRequest(fragment_store="s3://bucket/path/")
    )

    validate_store_health_response(response)
    assert response.status == Status.OK
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.FragmentStoreHealth(FragmentStoreHealthRequest(fragment_store="nonsense"))
