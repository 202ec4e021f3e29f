"""The List and Apply RPCs, their revisions over restarts, and authorization, over a real socket.

Source: gazette/core broker/list_apply_api_test.go, auth/auth_test.go (behaviours).
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.errors import BrokerDataError
from broadsheet.broker.server import Broker
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    ApplyRequest,
    LabelSelector,
    ListRequest,
    ListResponse,
    ReadRequest,
    Status,
)
from broadsheet.wire.labels import label_set, parse_selector
from broadsheet.wire.validation_journal_response import (
    validate_apply_response,
    validate_list_response,
)
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, next_message, read

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

Change = ApplyRequest.Change


@pytest.fixture
async def stub(broker: EmbeddedBroker) -> AsyncIterator[JournalAsyncStub]:
    """A stub of an empty broker."""
    async with broker_stub(broker.address) as stub:
        yield stub


async def _snapshot(
    call: grpc.aio.UnaryStreamCall[ListRequest, ListResponse],
) -> tuple[list[str], int]:
    """Return one watched snapshot: its names and its revision."""
    first = await next_message(call)
    names = [journal.spec.name for journal in first.journals]
    message = first
    while message.journals or message is first:
        message = await next_message(call)
        assert not message.HasField("header")
        names += [journal.spec.name for journal in message.journals]
    return names, first.header.etcd.revision


async def _names(stub: JournalAsyncStub, selector: LabelSelector) -> list[str]:
    return [
        journal.spec.name
        async for response in stub.List(ListRequest(selector=selector), timeout=10)
        for journal in response.journals
    ]


async def test_list_pages_are_never_empty_but_the_first(stub: JournalAsyncStub) -> None:
    """60 journals come as 25, 25, 10 in order of names; none at all as one message."""
    empty = [response async for response in stub.List(ListRequest())]
    await apply_specs(stub, *(journal_spec(f"many/{n:03}") for n in range(60)))

    pages = [response async for response in stub.List(ListRequest())]

    assert [len(page.journals) for page in empty] == [0]
    assert [len(page.journals) for page in pages] == [25, 25, 10]
    for index, page in enumerate(pages):
        validate_list_response(page, first=index == 0)
    names = [journal.spec.name for page in pages for journal in page.journals]
    assert names == sorted(names)


async def test_list_selects_by_labels_name_and_prefix(stub: JournalAsyncStub) -> None:
    """Labels, the meta-labels, exclusion, and the documented OR of `name` with `prefix`."""
    for name, color in (("a/red", "red"), ("a/blue", "blue"), ("b/red", "red")):
        await apply_specs(stub, journal_spec(name, labels=label_set(("color", color))))

    async def select(text: str) -> list[str]:
        return await _names(stub, parse_selector(text))

    assert await select("color = red") == ["a/red", "b/red"]
    assert await select("prefix = a/") == ["a/blue", "a/red"]
    assert await select("prefix = a/, color != blue") == ["a/red"]
    assert await select("name = b/red, prefix = a/") == ["a/blue", "a/red", "b/red"]


async def test_watch_sends_whole_snapshots_and_resumes(stub: JournalAsyncStub) -> None:
    """I14: each change of the matched set gives one snapshot; unrelated ones give none; resume waits for more."""
    selector = parse_selector("prefix = in/")
    call = stub.List(ListRequest(selector=selector, watch=True), timeout=20)
    empty, begin = await _snapshot(call)
    await apply_specs(stub, journal_spec("out/one"))
    await apply_specs(stub, journal_spec("in/one"))
    one, after_one = await _snapshot(call)
    await apply_specs(stub, *(journal_spec(f"in/{n:02}") for n in range(30)))
    many, after_many = await _snapshot(call)
    await stub.Apply(ApplyRequest(changes=[Change(delete="in/one", expect_mod_revision=-1)]))
    fewer, after_delete = await _snapshot(call)
    call.cancel()

    assert (empty, one, len(many), len(fewer)) == ([], ["in/one"], 31, 30)
    assert begin < after_one < after_many < after_delete
    request = ListRequest(selector=selector, watch=True)
    request.watch_resume.etcd.revision = after_delete
    resumed = stub.List(request, timeout=20)
    waiting = asyncio.gather(_snapshot(resumed))
    await append(stub, "in/00", b"not a change of specs")
    assert not waiting.done()
    await apply_specs(stub, journal_spec("out/two"))
    ((names, revision),) = await waiting
    assert (names, revision) == (fewer, after_delete + 1)
    resumed.cancel()


async def test_apply_creates_updates_and_deletes_in_one_transaction(stub: JournalAsyncStub) -> None:
    """One revision for all; create revisions survive updates; any mismatch leaves everything as it was."""
    created = await apply_specs(stub, journal_spec("aa/1"), journal_spec("aa/2"), expect=0)
    revision = created.header.etcd.revision
    changes = [
        Change(upsert=journal_spec("aa/1", length=4096), expect_mod_revision=revision),
        Change(delete="aa/2", expect_mod_revision=revision),
        Change(upsert=journal_spec("aa/3"), expect_mod_revision=0),
    ]

    done = await stub.Apply(ApplyRequest(changes=changes))
    stale = await stub.Apply(ApplyRequest(changes=changes))
    nothing = await stub.Apply(ApplyRequest())
    absent = await stub.Apply(ApplyRequest(changes=[Change(delete="aa/2", expect_mod_revision=-1)]))

    for response in (created, done, stale, nothing, absent):
        validate_apply_response(response)
    assert done.header.etcd.revision == revision + 1
    assert stale.status == Status.ETCD_TRANSACTION_FAILED
    assert (nothing.status, absent.status) == (Status.OK, Status.OK)
    assert absent.header.etcd.revision == revision + 1
    (page,) = [response async for response in stub.List(ListRequest())]
    listed = {j.spec.name: (j.create_revision, j.mod_revision) for j in page.journals}
    assert listed == {
        "aa/1": (revision, revision + 1),
        "aa/3": (revision + 1, revision + 1),
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([Change()], "changes[0]"),
        ([Change(upsert=journal_spec("bad name"))], "changes[0].upsert.name"),
        ([Change(delete="aa/1", expect_mod_revision=0)], "changes[0].expect_mod_revision"),
        ([Change(upsert=journal_spec("aa/1"))] * 2, "two of them"),
        ([Change(upsert=journal_spec(f"aa/{n}")) for n in range(129)], "128"),
    ],
)
async def test_apply_bad_request_is_refused(
    stub: JournalAsyncStub, changes: list[ApplyRequest.Change], text: str
) -> None:
    """Nothing is applied, and the message names the field."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Apply(ApplyRequest(changes=changes))

    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    assert text in (caught.value.details() or "")
    assert await _names(stub, LabelSelector()) == []


async def test_apply_names_never_become_paths(
    broker: EmbeddedBroker, stub: JournalAsyncStub
) -> None:
    """Gazette accepts names that begin with `../`; such a journal works and leaves the root alone."""
    await apply_specs(stub, journal_spec("../../escape"))

    assert (await append(stub, "../../escape", b"x")).status == Status.OK
    assert not list(broker.broker.data_dir.parent.parent.glob("escape*"))


async def test_revisions_grow_over_restarts(tmp_path: Path) -> None:
    """I10: identity stays, the term counts starts, and no revision is ever given twice."""
    headers = []
    for number in range(3):
        async with EmbeddedBroker(tmp_path / "b") as broker, broker_stub(broker.address) as stub:
            for _ in range(2):
                response = await apply_specs(stub, journal_spec(f"jour/{number}"))
                headers.append(response.header.etcd)
            names = await _names(stub, LabelSelector())

    assert names == ["jour/0", "jour/1", "jour/2"]
    revisions = [header.revision for header in headers]
    assert revisions == sorted(set(revisions))
    assert {header.cluster_id for header in headers} == {headers[0].cluster_id}
    assert [header.raft_term for header in headers] == [1, 1, 2, 2, 3, 3]


async def test_second_broker_on_the_same_data_refuses_to_start(tmp_path: Path) -> None:
    """I18: two writers would destroy each other's data."""
    async with EmbeddedBroker(tmp_path / "b"):
        with pytest.raises(BrokerDataError, match="another broker"):
            async with EmbeddedBroker(tmp_path / "b"):
                pass


async def test_foreign_directory_is_not_taken(tmp_path: Path) -> None:
    """A typing mistake in --data-dir must not scatter files among somebody's documents."""
    (tmp_path / "thesis.tex").write_text("mine")

    with pytest.raises(BrokerDataError, match=r"thesis\.tex"):
        async with EmbeddedBroker(tmp_path):
            pass


def test_open_address_without_keys_is_refused(tmp_path: Path) -> None:
    """Only loopback may be served to everyone, unless that is asked for."""
    with pytest.raises(ValidationError, match="auth keys"):
        Broker(BrokerConfig(data_dir=tmp_path, host="0.0.0.0"))  # noqa: S104 - the point of the test


async def test_authorization_guards_every_method(tmp_path: Path) -> None:
    """Without a token UNAUTHENTICATED; beyond the selector a journal does not exist; listings hide it."""
    auth = KeyedAuth(b64encode(b"a secret of the test, 32 bytes or more").decode())
    config = BrokerConfig(
        data_dir=tmp_path / "b",
        auth_keys=b64encode(b"a secret of the test, 32 bytes or more").decode(),
    )
    everything = auth.metadata(Claims(capability=Capability.ALL))
    only_a = Claims(capability=Capability.ALL, selector=parse_selector("name = mine/a"))
    mine = auth.metadata(only_a)
    async with (
        EmbeddedBroker(tmp_path, config=config) as broker,
        broker_stub(broker.address) as stub,
    ):
        changes = [Change(upsert=journal_spec(name)) for name in ("mine/a", "theirs/b")]
        with pytest.raises(grpc.aio.AioRpcError) as no_token:
            await stub.Apply(ApplyRequest(changes=changes))
        with pytest.raises(grpc.aio.AioRpcError) as not_covered:
            await stub.Apply(ApplyRequest(changes=changes), metadata=mine)
        await stub.Apply(ApplyRequest(changes=changes), metadata=everything)
        listed = [
            journal.spec.name
            async for page in stub.List(ListRequest(), metadata=mine)
            for journal in page.journals
        ]
        hidden = await next_message(stub.Read(ReadRequest(journal="theirs/b"), metadata=mine))
        call = stub.Append(metadata=mine)
        await call.write(AppendRequest(journal="theirs/b"))
        append_hidden = await call

    assert no_token.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert not_covered.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert listed == ["mine/a"]
    assert (hidden.status, len(hidden.header.route.members)) == (Status.JOURNAL_NOT_FOUND, 0)
    assert append_hidden.status == Status.JOURNAL_NOT_FOUND


async def test_change_is_judged_by_the_labels_that_a_journal_has(tmp_path: Path) -> None:
    """A selector would protect nothing if its bearer could give a journal of others the labels that it covers, or
    delete one that it excludes: no label is in a deletion. What the token does cover may be deleted, though.
    """
    keys = b64encode(b"a secret of the test, 32 bytes or more").decode()
    auth = KeyedAuth(keys)
    config = BrokerConfig(data_dir=tmp_path / "b", auth_keys=keys)
    theirs, mine = label_set({"team": "theirs"}), label_set({"team": "mine"})

    def token(selector: str) -> tuple[tuple[str, str], ...]:
        claims = Claims(capability=Capability.ALL, selector=parse_selector(selector))
        return auth.metadata(claims)

    async with (
        EmbeddedBroker(tmp_path, config=config) as broker,
        broker_stub(broker.address) as stub,
    ):
        specs = [journal_spec("a/theirs", labels=theirs), journal_spec("a/mine", labels=mine)]
        await stub.Apply(
            ApplyRequest(changes=[Change(upsert=spec) for spec in specs]), metadata=token("")
        )
        taken = Change(upsert=journal_spec("a/theirs", labels=mine), expect_mod_revision=-1)
        deleted = Change(delete="a/theirs", expect_mod_revision=-1)
        tries = ((taken, "team=mine"), (deleted, "team=mine"), (deleted, "team!=theirs"))
        for change, scope in tries:
            with pytest.raises(grpc.aio.AioRpcError, match="does not cover") as refused:
                await stub.Apply(ApplyRequest(changes=[change]), metadata=token(scope))
            assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        own = ApplyRequest(changes=[Change(delete="a/mine", expect_mod_revision=-1)])
        answer = await stub.Apply(own, metadata=token("team=mine"))
        left = [
            (journal.spec.name, list(journal.spec.labels.labels) == list(theirs.labels))
            async for page in stub.List(ListRequest(), metadata=token(""))
            for journal in page.journals
        ]

    assert answer.status == Status.OK
    assert left == [("a/theirs", True)]


async def test_taken_port_is_named(tmp_path: Path) -> None:
    """A broker that cannot listen says where, and leaves its data free for the next attempt."""
    async with EmbeddedBroker(tmp_path / "a") as first:
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(EndpointError, match=f"127.0.0.1:{port}"):
            async with EmbeddedBroker(tmp_path / "b", port=port):
                pass
    async with EmbeddedBroker(tmp_path / "b") as again:
        assert again.address


async def test_churn_of_journals_in_use_ends_cleanly(stub: JournalAsyncStub) -> None:
    """Journals that are created and deleted under appends and reads answer each call, and the last one is empty."""
    statuses: set[int] = set()

    async def use() -> None:
        statuses.add((await append(stub, "churn/1", b"x")).status)
        statuses.add((await read(stub, "churn/1")).last_status)

    for _ in range(10):
        await apply_specs(stub, journal_spec("churn/1"))
        users = asyncio.gather(*(use() for _ in range(4)), return_exceptions=True)
        await stub.Apply(ApplyRequest(changes=[Change(delete="churn/1", expect_mod_revision=-1)]))
        for error in await users:
            # Opening a journal that is being deleted may also end in UNAVAILABLE.
            assert error is None or (
                isinstance(error, grpc.aio.AioRpcError)
                and error.code() == grpc.StatusCode.UNAVAILABLE
            )
    await apply_specs(stub, journal_spec("churn/1"))

    assert statuses <= {Status.OK, Status.JOURNAL_NOT_FOUND, Status.OFFSET_NOT_YET_AVAILABLE}
    assert (await append(stub, "churn/1")).commit.end == 0
