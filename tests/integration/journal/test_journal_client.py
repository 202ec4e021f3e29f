"""The journal client at a real broker: every method, from a journal's creation to its end."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    JournalNotAllowedError,
    JournalNotFoundError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
from broadsheet.journals.listing import ListResult
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import RpcFailedError, ValidationError
from broadsheet.security.auth import KeyedAuth
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.labels import label_set, parse_selector
from tests.support.broker import journal_spec
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.tcp_proxy import TcpProxy


async def create(client: JournalClient, *names: str, **labels: str) -> pb.ApplyResponse:
    """Create journals."""
    return await client.apply(
        [
            pb.ApplyRequest.Change(upsert=journal_spec(name, labels=label_set(labels)))
            for name in names
        ]
    )


async def read_now(client: JournalClient, journal: str, offset: int = 0) -> bytes:
    """Return everything from `offset` to the write head."""
    reader = client.reader(journal, offset=offset, block=False)
    return b"".join([span.content async for span in reader])


async def test_appended_bytes_are_read_back_in_order(journals: JournalClient) -> None:
    """The plain path: several appends, pieces of any size, one read over all fragments."""
    await create(journals, "test/one")
    large = bytes(range(256)) * (3 << 12)

    first = await journals.append("test/one", b"hello ")
    second = await journals.append("test/one", [b"wor", b"", large, b"ld"])

    assert (first.commit.begin, first.commit.end) == (0, 6)
    assert second.commit.begin == 6
    assert await read_now(journals, "test/one") == b"hello wor" + large + b"ld"
    assert await read_now(journals, "test/one", offset=4) == b"o wor" + large + b"ld"
    assert await journals.write_head("test/one") == second.commit.end


async def test_read_between_offsets_ends_by_itself(journals: JournalClient) -> None:
    """A blocking read with an end needs nobody to stop it."""
    await create(journals, "test/one")
    await journals.append("test/one", b"0123456789")

    reader = journals.reader("test/one", offset=3, end_offset=7)
    content = b"".join([span.content async for span in reader])

    assert content == b"3456"
    assert (reader.offset, reader.write_head) == (7, 10)
    assert reader.fragment is not None
    assert reader.fragment.end == 10


async def test_blocked_read_is_woken_by_an_append(journals: JournalClient) -> None:
    """Readers wait at the head; new bytes come to them."""
    await create(journals, "test/one")
    await journals.append("test/one", b"old")

    async with journals.reader("test/one", offset=-1) as reader, asyncio.TaskGroup() as group:
        waiting = group.create_task(anext(reader))
        await eventually(lambda: reader.write_head)
        await journals.append("test/one", b"new")
        span = await waiting

    assert (span.offset, span.content) == (3, b"new")


async def test_empty_journal_reads_as_nothing(journals: JournalClient) -> None:
    """Nothing there is an end, not an error."""
    await create(journals, "test/one")

    assert await read_now(journals, "test/one") == b""
    assert await journals.write_head("test/one") == 0


async def test_registers_fence_and_offsets_pin(journals: JournalClient) -> None:
    """The two ways to append exactly once: who I am, and where I stand."""
    await create(journals, "test/one")
    await journals.append("test/one", b"mine", union_registers=label_set(("author", "me")))

    response = await journals.append(
        "test/one", b"again", check_registers=parse_selector("author=me"), offset=4
    )
    with pytest.raises(RegisterMismatchError, match="it holds author=me") as fenced:
        await journals.append("test/one", b"no", check_registers=parse_selector("author=you"))
    with pytest.raises(WrongAppendOffsetError, match="demanded offset 4"):
        await journals.append("test/one", b"no", offset=4)

    assert response.commit.end == 9
    assert fenced.value.registers == label_set(("author", "me"))
    assert await read_now(journals, "test/one") == b"mineagain"


async def test_barrier_tells_the_head_and_appends_nothing(journals: JournalClient) -> None:
    """An append of no bytes is sequenced like any other."""
    await create(journals, "test/one")
    await journals.append("test/one", b"abc")

    barrier = await journals.append("test/one", b"")

    assert (barrier.commit.begin, barrier.commit.end) == (3, 3)


async def test_flags_and_absence_are_refusals_of_their_own(journals: JournalClient) -> None:
    """Read-only, write-only, unknown: each says what it is."""
    await journals.apply(
        [
            pb.ApplyRequest.Change(upsert=journal_spec("test/ro", flags=pb.JournalSpec.O_RDONLY)),
            pb.ApplyRequest.Change(upsert=journal_spec("test/wo", flags=pb.JournalSpec.O_WRONLY)),
        ]
    )

    with pytest.raises(JournalNotAllowedError, match="test/ro"):
        await journals.append("test/ro", b"x")
    with pytest.raises(JournalNotAllowedError, match="test/wo"):
        await read_now(journals, "test/wo")
    with pytest.raises(JournalNotFoundError, match="test/none"):
        await journals.append("test/none", b"x")
    with pytest.raises(JournalNotFoundError, match="test/none"):
        await read_now(journals, "test/none")


async def test_listing_selects_applies_conflict_and_deletes_go(journals: JournalClient) -> None:
    """A spec's whole life through the client."""
    await create(journals, "test/aa", "test/bb", "else/cc", app="flights")
    listed = await journals.get("test/aa")

    selected = await journals.list(parse_selector("prefix=test/,app=flights"))
    with pytest.raises(ApplyConflictError):
        await journals.apply([pb.ApplyRequest.Change(upsert=listed.spec)])
    delete = pb.ApplyRequest.Change(delete="test/aa", expect_mod_revision=listed.mod_revision)
    await journals.apply([delete])

    assert [journal.spec.name for journal in selected.journals] == ["test/aa", "test/bb"]
    assert listed.route.endpoints[listed.route.primary] == journals.address
    with pytest.raises(JournalNotFoundError):
        await journals.get("test/aa")


async def test_apply_of_a_bad_spec_names_the_field(journals: JournalClient) -> None:
    """Refused here, before a request is made."""
    spec = journal_spec("test/one", length=1)

    with pytest.raises(ValidationError, match=r"changes\[0\]\.upsert\.fragment\.length"):
        await journals.apply([pb.ApplyRequest.Change(upsert=spec)])


async def test_watch_sees_each_change_of_the_listing(journals: JournalClient) -> None:
    """Whole snapshots: empty, one journal, another revision, gone."""
    seen: list[list[tuple[str, int]]] = []

    async def change() -> None:
        created = await create(journals, "test/one")
        revision = created.header.etcd.revision
        await eventually(lambda: len(seen) == 2)
        updated = await journals.apply(
            [
                pb.ApplyRequest.Change(
                    upsert=journal_spec("test/one", labels=label_set(("app", "x"))),
                    expect_mod_revision=revision,
                )
            ]
        )
        await eventually(lambda: len(seen) == 3)
        await journals.apply(
            [
                pb.ApplyRequest.Change(
                    delete="test/one", expect_mod_revision=updated.header.etcd.revision
                )
            ]
        )

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
        async for snapshot in journals.watch_list(parse_selector("prefix=test/")):
            seen.append([(item.spec.name, item.mod_revision) for item in snapshot.journals])
            if len(seen) == 1:
                group.create_task(change())
            if len(seen) == 4:
                break

    names = [[name for name, _ in snapshot] for snapshot in seen]
    assert names == [[], ["test/one"], ["test/one"], []]
    assert seen[1][0][1] < seen[2][0][1]


async def test_fragments_are_listed(journals: JournalClient) -> None:
    """Content is found again by where it lies."""
    await create(journals, "test/one")
    await journals.append("test/one", b"abc")

    fragments = await journals.list_fragments("test/one")

    assert [(listed.spec.begin, listed.spec.end) for listed in fragments] == [(0, 3)]


async def test_service_and_meta_names_reach_one_journal(journals: JournalClient) -> None:
    """`;meta` is for the caller's books: the bytes go to the bare journal, in each name's own order."""
    await create(journals, "test/one")

    async with AppendService(journals) as service:
        service.append("test/one", b"1")
        last = service.append("test/one", b"2")
        await asyncio.wrap_future(last)
        await asyncio.wrap_future(service.append("test/one;meta", b"3"))

    assert await read_now(journals, "test/one;other") == b"123"


async def test_routes_lead_to_the_broker_and_are_dropped_with_it(tmp_path: Path) -> None:
    """With a route cache the client asks the journal's own broker, and finds the way back when it has gone."""
    policy = TransportPolicy(route_cache_size=10, zone="local")
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(tmp_path / "broker"))
        proxy = await stack.enter_async_context(TcpProxy(broker.address.removeprefix("http://")))
        client = await stack.enter_async_context(
            JournalClient(f"http://{proxy.endpoint}", policy=policy)
        )
        await create(client, "test/one")
        await client.append("test/one", b"abc")
        await proxy.cut()  # From here on only the route leads there.
        assert await read_now(client, "test/one") == b"abc"
        await proxy.heal()
        for request in ("read", "append"):
            await broker.stop()
            broker = await stack.enter_async_context(EmbeddedBroker(tmp_path / "broker"))
            proxy.lead_to(broker.address.removeprefix("http://"))
            if request == "read":
                assert await read_now(client, "test/one") == b"abc"
        response = await client.append("test/one", b"def")

    assert response.commit.begin == 3


async def test_tokens_open_what_they_select_and_nothing_else(tmp_path: Path) -> None:
    """The client signs for just what it asks; without keys it is sent away."""
    keys = b64encode(b"a-test-secret, 32 bytes or more.").decode()
    config = BrokerConfig(data_dir=tmp_path / "broker", auth_keys=keys)
    async with EmbeddedBroker(tmp_path / "broker", config=config) as broker:
        async with JournalClient(broker.address, auth=KeyedAuth(keys)) as client:
            await create(client, "test/one")
            await client.append("test/one", b"abc")
            assert await read_now(client, "test/one") == b"abc"
            assert [found.spec.name for found in (await client.list()).journals] == ["test/one"]
        async with JournalClient(broker.address) as stranger:
            with pytest.raises(UnauthenticatedError, match="authorization"):
                await stranger.append("test/one", b"x")
            with pytest.raises(UnauthenticatedError, match="authorization"):
                await read_now(stranger, "test/one")
            with pytest.raises(UnauthenticatedError, match="authorization"):
                await stranger.list()


@pytest.mark.parametrize("closing", ["reader", "client"])
async def test_closing_ends_what_waits(broker: EmbeddedBroker, closing: str) -> None:
    """A blocked read and a watch must not outlive what they run on, nor open it again."""
    client = JournalClient(broker.address)
    await create(client, "test/one")
    await client.append("test/one", b"x")
    reader = client.reader("test/one", offset=-1)

    async def read() -> list[bytes]:
        return [span.content async for span in reader]

    snapshots: list[ListResult] = []

    async def watch() -> None:
        async for snapshot in client.watch_list():
            snapshots.append(snapshot)  # noqa: PERF401 - seen from outside while it grows

    async with asyncio.timeout(DEADLINE_SECONDS):
        reading, watching = asyncio.gather(read(), return_exceptions=True), asyncio.gather(watch())
        await eventually(lambda: reader.write_head and snapshots)
        if closing == "reader":
            await reader.aclose()
        else:
            await client.close()
        (ended,) = await reading
        await client.close()
        await watching

    if closing == "reader":
        assert ended == []
    else:
        assert isinstance(ended, RpcFailedError)
    assert len(snapshots) == 1
