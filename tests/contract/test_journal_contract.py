"""What shards rely on in a journal broker, through the real client: of the embedded broker, and of the simulator's.

An implementation joins by adding itself to `IMPLEMENTATIONS`; the suite asks nothing beyond a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    JournalNotAllowedError,
    JournalNotFoundError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
from broadsheet.journals.reader import Reader, ReadSpan
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.shards.broker import MemoryBroker
from broadsheet.testing.shards.channels import SimulatedChannels
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import AppendResponse, ApplyRequest, JournalSpec
from broadsheet.wire.labels import label_set, parse_selector, selector
from tests.support.broker import journal_spec
from tests.support.eventually import eventually

JOURNAL = "test/one"

Opened = AbstractAsyncContextManager[JournalClient]


@asynccontextmanager
async def _embedded(directory: Path) -> AsyncIterator[JournalClient]:
    """The real thing."""
    async with EmbeddedBroker(directory) as broker, JournalClient(broker.address) as client:
        yield client


@asynccontextmanager
async def _simulated(directory: Path) -> AsyncIterator[JournalClient]:
    """The simulator's, in memory, on real time here; nothing goes wrong on the way."""
    del directory
    channels = SimulatedChannels(MemoryBroker(), Link(Random(1), (0.0, 0.001)))
    async with JournalClient("http://simulated:80", channels=channels) as client:
        yield client


IMPLEMENTATIONS = [pytest.param(_embedded, id="embedded"), pytest.param(_simulated, id="simulated")]


@pytest.fixture(params=IMPLEMENTATIONS)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JournalClient]:
    """A client of an empty broker."""
    implementation: Callable[[Path], Opened] = request.param
    async with implementation(tmp_path) as opened:
        yield opened


async def create(client: JournalClient, *specs: JournalSpec) -> None:
    """Create journals; one that may be read and written if none is given."""
    wanted = specs or (journal_spec(JOURNAL),)
    await client.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=0) for spec in wanted])


def span_of(response: AppendResponse) -> tuple[int, int]:
    """Return where an append landed."""
    return response.commit.begin, response.commit.end


async def content_of(reader: Reader) -> bytes:
    """Read to the end."""
    return b"".join([span.content async for span in reader])


async def test_appends_land_one_behind_the_other(client: JournalClient) -> None:
    """Each append is one contiguous span, however many pieces and messages it takes."""
    await create(client)
    large = bytes(range(256)) * 2000

    first = await client.append(JOURNAL, b"hello ")
    second = await client.append(JOURNAL, [b"wor", b"", large, b"ld"])

    assert span_of(first) == (0, 6)
    assert span_of(second) == (6, 11 + len(large))
    assert await content_of(client.reader(JOURNAL, block=False)) == b"hello wor" + large + b"ld"


async def test_append_of_nothing_is_a_barrier(client: JournalClient) -> None:
    """It tells the write head and the registers behind all that came before, and changes nothing."""
    await create(client)
    await client.append(JOURNAL, b"12345", union_registers=label_set(("author", "me")))

    response = await client.append(JOURNAL, b"")

    assert span_of(response) == (5, 5)
    assert response.registers == label_set(("author", "me"))
    assert await client.write_head(JOURNAL) == 5


async def test_registers_are_set_with_an_append_and_checked_by_the_next(
    client: JournalClient,
) -> None:
    """A fence: who is not named is refused, is told who is, and leaves no trace."""
    await create(client)
    mine, yours = parse_selector("author=me"), parse_selector("author=you")

    unfenced = await client.append(JOURNAL, b"a", check_registers=yours)
    await client.append(JOURNAL, b"b", union_registers=label_set(("author", "me")))
    accepted = await client.append(JOURNAL, b"c", check_registers=mine)
    with pytest.raises(RegisterMismatchError) as refused:
        await client.append(JOURNAL, b"d", check_registers=yours)
    with pytest.raises(RegisterMismatchError):
        await client.append(JOURNAL, b"", check_registers=yours)

    assert not unfenced.registers.labels
    assert accepted.registers == refused.value.registers == label_set(("author", "me"))
    assert await content_of(client.reader(JOURNAL, block=False)) == b"abc"


async def test_union_replaces_a_register_and_subtract_removes_it(client: JournalClient) -> None:
    """In this order: first what is taken away, then what is added."""
    await create(client)
    await client.append(JOURNAL, b"a", union_registers=label_set(("author", "me"), ("epoch", "1")))

    replaced = await client.append(
        JOURNAL,
        b"b",
        union_registers=label_set(("author", "you")),
        subtract_registers=label_set(("epoch", "1")),
    )
    kept = await client.append(JOURNAL, b"c", subtract_registers=label_set(("author", "me")))
    emptied = await client.append(JOURNAL, b"d", subtract_registers=label_set(("author", "you")))

    assert replaced.registers == kept.registers == label_set(("author", "you"))
    assert not emptied.registers.labels
    # Without registers every check passes.
    await client.append(JOURNAL, b"e", check_registers=parse_selector("author=anyone"))


async def test_register_that_must_be_absent_refuses_whatever_its_value(
    client: JournalClient,
) -> None:
    """What keeps late copies out: an append that demands that nobody has set a register, beside one that is set."""
    await create(client)
    absent = selector(exclude=label_set(("copies", "")))
    await client.append(JOURNAL, b"a", union_registers=label_set(("author", "me")))

    await client.append(
        JOURNAL, b"b", check_registers=absent, union_registers=label_set(("copies", "1"))
    )
    with pytest.raises(RegisterMismatchError) as refused:
        await client.append(JOURNAL, b"c", check_registers=absent)

    assert refused.value.registers == label_set(("author", "me"), ("copies", "1"))
    assert await content_of(client.reader(JOURNAL, block=False)) == b"ab"


async def test_demanded_offset_is_the_write_head_or_nothing_is_appended(
    client: JournalClient,
) -> None:
    """A copy of an append that demands its offset cannot land twice."""
    await create(client)
    await client.append(JOURNAL, b"12345")

    with pytest.raises(WrongAppendOffsetError):
        await client.append(JOURNAL, b"no", offset=4)
    response = await client.append(JOURNAL, b"yes", offset=5)

    assert span_of(response) == (5, 8)


async def test_registers_are_judged_before_the_offset(client: JournalClient) -> None:
    """A fenced writer learns that it is fenced, not that it is late."""
    await create(client)
    await client.append(JOURNAL, b"12345", union_registers=label_set(("author", "me")))

    with pytest.raises(RegisterMismatchError):
        await client.append(JOURNAL, b"no", offset=4, check_registers=parse_selector("author=you"))


async def test_journal_that_does_not_exist_is_told_as_such(client: JournalClient) -> None:
    """By every method that names it."""
    with pytest.raises(JournalNotFoundError):
        await client.append("test/none", b"x")
    with pytest.raises(JournalNotFoundError):
        await client.write_head("test/none")
    with pytest.raises(JournalNotFoundError):
        await client.get("test/none")


async def test_journal_that_may_only_be_read_refuses_content(client: JournalClient) -> None:
    """And one that may only be written refuses to be read."""
    read_only = journal_spec("test/read", flags=JournalSpec.O_RDONLY)
    write_only = journal_spec("test/write", flags=JournalSpec.O_WRONLY)
    await create(client, read_only, write_only)

    with pytest.raises(JournalNotAllowedError):
        await client.append("test/read", b"x")
    with pytest.raises(JournalNotAllowedError):
        await content_of(client.reader("test/write", block=False))


async def test_read_begins_and_ends_where_it_is_told(client: JournalClient) -> None:
    """A read with an end ends by itself, though it may block."""
    await create(client)
    await client.append(JOURNAL, b"0123456789")

    reader = client.reader(JOURNAL, offset=3, end_offset=7)
    content = await content_of(reader)

    assert (content, reader.offset, reader.write_head) == (b"3456", 7, 10)
    assert await content_of(client.reader(JOURNAL, offset=10, block=False)) == b""


async def test_blocked_read_is_woken_by_each_append(client: JournalClient) -> None:
    """Bytes come in order, each once, and none before it is there; so does the write head."""
    await create(client)
    await client.append(JOURNAL, b"old")
    arrived: list[ReadSpan] = []

    async def read() -> None:
        async with client.reader(JOURNAL) as reader:
            async for span in reader:
                arrived.append(span)  # noqa: PERF401 - looked at meanwhile

    def has_arrived(content: bytes) -> bool:
        return b"".join(span.content for span in arrived) == content

    async with TaskGroup() as group:
        group.start_soon(read(), name="read")
        await eventually(partial(has_arrived, b"old"))
        for expected in (b"old1", b"old12", b"old123"):
            await client.append(JOURNAL, expected[-1:])
            await eventually(partial(has_arrived, expected))
        group.stop()

    assert [span.offset for span in arrived][-3:] == [3, 4, 5]
    assert not any(span.jumped for span in arrived)


async def test_read_from_the_write_head_sees_what_comes(client: JournalClient) -> None:
    """Offset -1 is the head of the moment."""
    await create(client)
    await client.append(JOURNAL, b"old")

    async with client.reader(JOURNAL, offset=-1) as reader, TaskGroup() as group:
        waiting = group.start_soon(anext(reader), name="read")
        await eventually(lambda: reader.offset == 3)
        await client.append(JOURNAL, b"new")
        span = await waiting

    assert (span.offset, span.content) == (3, b"new")


async def test_names_may_carry_meta(client: JournalClient) -> None:
    """What follows a semicolon is the caller's business."""
    await create(client)

    await client.append(f"{JOURNAL};derived/a", b"x")

    assert await content_of(client.reader(f"{JOURNAL};derived/b", block=False)) == b"x"
    assert (await client.get(f"{JOURNAL};c")).spec.name == JOURNAL


async def test_journals_are_listed_by_name_and_label(client: JournalClient) -> None:
    """With the revisions that a change of them expects."""
    one = journal_spec("test/one", labels=label_set(("kind", "log")))
    two = journal_spec("test/two")
    await create(client, two, one)

    everything = await client.list()
    logs = await client.list(parse_selector("kind=log"))
    listed = await client.get("test/two")

    assert [each.spec.name for each in everything.journals] == ["test/one", "test/two"]
    assert [each.spec.name for each in logs.journals] == ["test/one"]
    with pytest.raises(ApplyConflictError):
        await create(client, two)
    deletion = ApplyRequest.Change(delete="test/two", expect_mod_revision=listed.mod_revision)
    await client.apply([deletion])
    assert [each.spec.name for each in (await client.list()).journals] == ["test/one"]


async def test_queued_appends_arrive_in_order_and_after_what_they_wait_for(
    client: JournalClient,
) -> None:
    """The append service over it: an acknowledgement stands behind what it acknowledges, in every journal."""
    await create(client, journal_spec("test/one"), journal_spec("test/two"))

    async with AppendService(client) as appends:
        first = appends.append("test/one", b"a")
        behind = appends.append("test/two", b"c", after=(first,))
        last = appends.append("test/one", b"b", after=(behind,))
        await asyncio.wrap_future(last)

    assert await content_of(client.reader("test/one", block=False)) == b"ab"
    assert await content_of(client.reader("test/two", block=False)) == b"c"
