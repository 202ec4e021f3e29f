"""Listing, watching, applying and paging against a broker that breaks off and lies."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import EndpointError, RpcFailedError
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.errors import ApplyConflictError
from tests.support.scripted_broker import Context, ScriptedBroker, header

Listings = AsyncIterator[pb.ListResponse]


def _listed(name: str, revision: int = 1) -> pb.ListResponse.Journal:
    spec = pb.JournalSpec(
        name=name,
        replication=1,
        fragment=pb.JournalSpec.Fragment(
            length=1 << 20, compression_codec=pb.NONE, refresh_interval=Duration(seconds=60)
        ),
    )
    return pb.ListResponse.Journal(spec=spec, mod_revision=revision, route=pb.Route(primary=-1))


def _first(*names: str, revision: int = 10) -> pb.ListResponse:
    return pb.ListResponse(header=header(revision), journals=[_listed(name) for name in names])


def _more(*names: str) -> pb.ListResponse:
    return pb.ListResponse(journals=[_listed(name) for name in names])


async def test_list_joins_messages_and_get_finds_none() -> None:
    """A long listing comes in several messages; an empty one in one."""

    async def answer(request: pb.ListRequest, context: Context) -> Listings:
        if request.selector.include.labels:
            yield _first()
            return
        yield _first("aaaa", "bbbb")
        yield _more("cccc")

    async with ScriptedBroker(on_list=answer) as broker, JournalClient(broker.address) as client:
        listing = await client.list()
        with pytest.raises(JournalNotFoundError, match="dddd"):
            await client.get("dddd;meta")

    assert [journal.spec.name for journal in listing.journals] == ["aaaa", "bbbb", "cccc"]
    assert broker.list_requests[1].selector.include.labels[0].value == "dddd"


@pytest.mark.parametrize(
    ("responses", "told"),
    [
        ([_first("aaaa"), pb.ListResponse()], "at least one in each message"),
        ([_more("aaaa")], "header"),
        ([_first("x")], r"journals\[0\]\.spec\.name"),
        ([pb.ListResponse(status=pb.WRONG_ROUTE, header=header())], "WRONG_ROUTE"),
    ],
)
async def test_listing_against_the_protocol_surfaces(
    responses: list[pb.ListResponse], told: str
) -> None:
    """Half a listing taken for a whole one would delete what it lacks."""

    async def answer(request: pb.ListRequest, context: Context) -> Listings:
        for response in responses:
            yield response

    async with ScriptedBroker(on_list=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(RpcFailedError, match=told):
            await client.list()


async def test_watch_resumes_after_the_last_snapshot_over_faults() -> None:
    """A break inside a snapshot, a stale snapshot, an error: none of them shows; each snapshot is whole."""
    script: list[list[pb.ListResponse] | grpc.StatusCode] = [
        [_first("aaaa", revision=10)],
        [
            _first("bbbb", revision=11),
            _more("cccc"),
            pb.ListResponse(),
            _first("half", revision=12),
        ],
        grpc.StatusCode.UNAVAILABLE,
        [_first("stale", revision=11), pb.ListResponse()],
        [_first(revision=13), _first("eeee", revision=14), pb.ListResponse()],
    ]

    async def answer(request: pb.ListRequest, context: Context) -> Listings:
        step = script.pop(0)
        if isinstance(step, grpc.StatusCode):
            await context.abort(step, "as scripted")
        else:
            for response in step:
                yield response

    seen: list[list[str]] = []
    async with ScriptedBroker(on_list=answer) as broker, JournalClient(broker.address) as client:
        async for snapshot in client.watch_list():
            seen.append([journal.spec.name for journal in snapshot.journals])
            if len(seen) == 4:
                break

    assert seen == [["aaaa"], ["bbbb", "cccc"], [], ["eeee"]]
    resumed = [request.watch_resume.etcd.revision for request in broker.list_requests[1:]]
    assert resumed == [10, 11, 11, 11]


async def test_refused_connection_of_a_listing_names_the_address() -> None:
    """What a terminal's user sees first when nothing runs."""
    async with JournalClient("127.0.0.1:1", policy=TransportPolicy(patience_seconds=0.1)) as client:
        with pytest.raises(EndpointError, match=r"cannot reach 127\.0\.0\.1:1: connection refused"):
            await client.list()
        with pytest.raises(EndpointError, match="is the broker running"):
            await anext(client.watch_list())
        with pytest.raises(EndpointError, match="is the broker running"):
            await client.apply([])
        with pytest.raises(EndpointError, match="is the broker running"):
            await client.list_fragments("abcd")
        with pytest.raises(EndpointError, match="is the broker running"):
            await client.write_head("abcd")


async def test_apply_conflict_is_told_with_the_header() -> None:
    """Another writer was faster: list again, apply again."""

    async def answer(request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:
        return pb.ApplyResponse(status=pb.ETCD_TRANSACTION_FAILED, header=header(77))

    async with ScriptedBroker(on_apply=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(ApplyConflictError) as raised:
            await client.apply([pb.ApplyRequest.Change(delete="abcd", expect_mod_revision=5)])

    assert raised.value.header is not None
    assert raised.value.header.etcd.revision == 77


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, EndpointError),
        (grpc.StatusCode.UNAUTHENTICATED, UnauthenticatedError),
        (grpc.StatusCode.UNKNOWN, RpcFailedError),
    ],
)
async def test_apply_whose_answer_was_lost_is_not_repeated(
    code: grpc.StatusCode, kind: type[Exception]
) -> None:
    """Done once, a repetition would conflict with itself and lie about it."""

    async def answer(request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:
        await context.abort(code, "as scripted")
        raise AssertionError("abort raises")

    async with ScriptedBroker(on_apply=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(kind, match="as scripted"):
            await client.apply([])

    assert broker.apply_count == 1


async def test_apply_in_batches_stops_at_the_first_failure() -> None:
    """Batches are for more changes than one transaction takes; earlier ones stay."""
    sizes: list[int] = []

    async def answer(request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:
        sizes.append(len(request.changes))
        failed = len(sizes) == 2
        return pb.ApplyResponse(
            status=pb.ETCD_TRANSACTION_FAILED if failed else pb.OK, header=header()
        )

    changes = [
        pb.ApplyRequest.Change(delete=f"journal-{number}", expect_mod_revision=1)
        for number in range(7)
    ]
    async with ScriptedBroker(on_apply=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(ApplyConflictError):
            await client.apply(changes, batch_size=3)

    assert sizes == [3, 3]


async def test_fragment_pages_are_joined() -> None:
    """A journal of years has more fragments than one answer holds."""

    async def answer(request: pb.FragmentsRequest, context: Context) -> pb.FragmentsResponse:
        begin = request.next_page_token
        fragment = pb.Fragment(
            journal="abcd", begin=begin, end=begin + 10, compression_codec=pb.NONE
        )
        return pb.FragmentsResponse(
            header=header(),
            fragments=[pb.FragmentsResponse.ListedFragment(spec=fragment)],
            next_page_token=begin + 10 if begin < 20 else 0,
        )

    async with (
        ScriptedBroker(on_fragments=answer) as broker,
        JournalClient(broker.address) as client,
    ):
        fragments = await client.list_fragments("abcd", page_limit=1)

    assert [listed.spec.begin for listed in fragments] == [0, 10, 20]
