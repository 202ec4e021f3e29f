"""The REST gateway of a member: JSON for messages, HTTP statuses for errors, gRPC's guard, and a description of it."""

from __future__ import annotations

import asyncio
import io
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from google.protobuf import json_format
from openapi_spec_validator import validate

from broadsheet.consumer.member.service import Service
from broadsheet.consumer.rpc.call_limits import CallBounds, CallLimits
from broadsheet.consumer.rpc.gateway import BODY_BYTES_MAX, Gateway, openapi
from broadsheet.consumer.rpc.guard import RpcGuard
from broadsheet.security.auth import Capability, Claims, KeyedAuth, NoAuth
from broadsheet.serving.admin import AdminServer
from broadsheet.serving.standard_services import Health
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus
from tests.support.members import Cluster, client_of, shard, upserts, wait_for_primaries

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
KEY = b64encode(b"a key of the test, thirty-two bytes").decode()
KEYS = KeyedAuth(KEY)
SECONDS = 300.0

# `Any` below: bodies of JSON.


@asynccontextmanager
async def _http(service: Service, token: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a session at the member's admin port."""
    async with aiohttp.ClientSession(
        base_url=service.admin_address,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=aiohttp.ClientTimeout(total=SECONDS),
    ) as session:
        yield session


async def _post(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with session.post(path, data=io.BytesIO(data)) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type.endswith("json") else text


def _token(capability: Capability, **labels: str) -> str:
    allowed = selector(label_set(labels)) if labels else LabelSelector()
    return KEYS.sign(Claims(capability=capability, selector=allowed))


async def test_shards_are_applied_listed_and_asked_over_http(cluster: Cluster) -> None:
    """What gRPC answers, as JSON: 64-bit numbers are strings, durations have a unit, defaults are there."""
    spec = json_format.MessageToDict(shard("shard-1", SOURCE))
    async with cluster.member("a", admin_port=0) as member, _http(member) as session:
        change = {"upsert": spec, "expectModRevision": "0"}
        status, applied = await _post(session, "/v1/shards/apply", {"changes": [change]})
        assert (status, applied["status"]) == (200, "OK")
        async with client_of(member) as client:
            await wait_for_primaries(client, "shard-1")
            expected = await client.list()

        status, listed = await _post(session, "/v1/shards/list", {})
        assert status == 200
        assert json_format.ParseDict(listed, ListResponse()).shards == expected.shards
        (row,) = listed["shards"]
        assert row["spec"]["maxTxnDuration"] == "0.200s"
        assert row["spec"]["disable"] is False
        assert int(row["modRevision"]) > 0

        status, stat = await _post(session, "/v1/shards/stat", {"shard": "shard-1"})
        assert (status, stat["status"]) == (200, "OK")
        status, stat = await _post(session, "/v1/shards/stat", {"shard": "absent"})
        assert (status, stat["status"]) == (200, "SHARD_NOT_FOUND")
        status, members = await _post(session, "/v1/allocation/list_members", {})
        assert (status, len(members["members"])) == (200, 1)
        status, replicas = await _post(session, "/v1/state/list_replicas", {})
        assert [each["shard"] for each in replicas["replicas"]] == ["shard-1"]

        status, again = await _post(session, "/v1/shards/apply", {"changes": [change]})
        assert (status, again["status"]) == (200, "ETCD_TRANSACTION_FAILED")


async def test_cursor_that_is_no_base64_is_refused(cluster: Cluster) -> None:
    """The parser drops what is none, so that the page would be another one: of "!!" the first."""
    async with cluster.member("a", admin_port=0) as member, _http(member) as session:
        for method in ("scan_keys", "list_timers"):
            for cursor in ("!!", "AAAA AAA", "A", "AA=A", 7, ["AA"]):
                body = {"shard": "shard-1", "cursor": cursor}
                status, error = await _post(session, f"/v1/keyed/{method}", body)
                assert (status, error["code"]) == (400, "INVALID_ARGUMENT"), cursor
                assert "cursor" in error["message"]
            for taken in ("", "AA", "AA==", "_-+/", None):
                asked = {"shard": "shard-1", "cursor": taken}
                status, found = await _post(session, f"/v1/keyed/{method}", asked)
                assert (status, found["status"]) == (200, "SHARD_NOT_FOUND"), taken


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "expected the JSON of a consumer.ListRequest"),
        (b"\xff\xfe", "expected the JSON of a consumer.ListRequest"),
        (b"[" * 100_000, "expected the JSON of a consumer.ListRequest"),
        (b'{"selector": ' * 50_000, "expected the JSON of a consumer.ListRequest"),
        (b'{"nothing": 1}', 'no field named "nothing"'),
        (
            b'{"selector": {"include": {"labels": [{"name": "%"}]}}}',
            "selector.include.labels[0].name",
        ),
    ],
)
async def test_body_that_is_no_request_is_refused_by_name(
    cluster: Cluster, body: bytes, problem: str
) -> None:
    """JSON cut off, no text, nested deeper than any parser goes, an unknown field, a rule broken."""
    async with cluster.member("a", admin_port=0) as member, _http(member) as session:
        status, failure = await _post(session, "/v1/shards/list", body)
        assert (status, failure["code"]) == (400, "INVALID_ARGUMENT")
        assert problem in failure["message"]


async def test_guard_is_that_of_grpc(cluster: Cluster) -> None:
    """No token, one that may too little, and one that sees some shards alone."""
    cluster.settings["auth_keys"] = KEY
    async with cluster.member("a", admin_port=0) as member, client_of(member, KEYS) as client:
        await client.apply(upserts(shard("shard-a", SOURCE, team="a"), shard("shard-b", SOURCE)))
        async with _http(member) as session:
            assert (await _post(session, "/v1/shards/list", {}))[0] == 401
            # Nothing of a stranger's body is read: it is refused as soon as its head is there.
            assert (await _post(session, "/v1/shards/apply", b" " * BODY_BYTES_MAX))[0] == 401
        async with _http(member, _token(Capability.LIST)) as session:
            assert (await _post(session, "/v1/shards/apply", {}))[0] == 403
        async with _http(member, _token(Capability.ALL, team="a")) as session:
            _, listed = await _post(session, "/v1/shards/list", {})
            assert [row["spec"]["id"] for row in listed["shards"]] == ["shard-a"]
            _, stat = await _post(session, "/v1/shards/stat", {"shard": "shard-b"})
            assert stat["status"] == "SHARD_NOT_FOUND"
            deletion = {"changes": [{"delete": "shard-b", "expectModRevision": "-1"}]}
            status, failure = await _post(session, "/v1/shards/apply", deletion)
            assert (status, failure["code"]) == (403, "PERMISSION_DENIED")
            assert "shard-b" in failure["message"]


async def test_body_that_is_too_long_is_refused(cluster: Cluster) -> None:
    """Whether its length is told or not."""
    async with cluster.member("a", admin_port=0) as member, _http(member) as session:
        assert (await _post(session, "/v1/shards/list", b" " * (BODY_BYTES_MAX + 1)))[0] == 413

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(BODY_BYTES_MAX // (64 << 10) + 1):
                yield b" " * (64 << 10)

        async with session.post("/v1/shards/list", data=endless()) as answer:
            assert answer.status == 413


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    """Yield the fields of each event."""
    event: dict[str, str] = {}
    async for line in answer.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            event[name] = value
        elif event:
            yield event
            event = {}


async def test_watch_streams_events_that_can_be_resumed(cluster: Cluster) -> None:
    """A browser shows shards as they change; after a break it goes on from the last event's id."""
    async with (
        cluster.member("a", admin_port=0) as member,
        client_of(member) as client,
        _http(member) as session,
    ):
        await client.apply(upserts(shard("shard-1", SOURCE), shard("shard-2", SOURCE)))
        async with session.get("/v1/shards/watch", params={"selector": "id=shard-1"}) as answer:
            assert answer.content_type == "text/event-stream"
            events = _events(answer)
            first = await anext(events)
            rows = json.loads(first["data"])
            assert rows["reset"] is True
            assert [row["spec"]["id"] for row in rows["shards"]] == ["shard-1"]
            async with asyncio.timeout(SECONDS):
                async for event in events:
                    first = event
                    shards = json.loads(event["data"])["shards"]
                    if [each["code"] for row in shards for each in row["status"]] == ["PRIMARY"]:
                        break

        await wait_for_primaries(client, "shard-1", "shard-2")
        await client.apply(upserts(shard("shard-3", SOURCE)))
        headers = {"Last-Event-ID": first["id"]}
        seen: set[str] = set()
        async with (
            session.get("/v1/shards/watch", headers=headers) as answer,
            asyncio.timeout(SECONDS),
        ):
            async for event in _events(answer):
                response = json.loads(event["data"])
                assert not response["reset"]
                seen |= {row["spec"]["id"] for row in response["shards"]}
                if "shard-3" in seen:
                    break
        assert "shard-1" not in seen

        for bad in ("x", "1", f"{10**18}0:1", f"1:{10**19}9"):
            async with session.get("/v1/shards/watch", headers={"Last-Event-ID": bad}) as answer:
                assert answer.status == 400
        async with session.get("/v1/shards/watch", params={"selector": "a in"}) as answer:
            assert answer.status == 400


async def test_watch_ends_with_its_member(cluster: Cluster) -> None:
    """The stream ends cleanly, so that a browser asks another member."""
    async with (
        cluster.member("a", admin_port=0) as member,
        _http(member) as session,
        session.get("/v1/shards/watch") as answer,
    ):
        events = _events(answer)
        await anext(events)
        member.force_stop()
        with pytest.raises((StopAsyncIteration, aiohttp.ClientError)):
            async with asyncio.timeout(SECONDS):
                while True:
                    await anext(events)


async def test_member_that_is_not_ready_says_so() -> None:
    """It knows nothing of the cluster yet: an empty list would be a lie."""
    gateway = Gateway(RpcGuard(NoAuth(), CallLimits(CallBounds())), Health())
    async with (
        AdminServer("127.0.0.1", 0, routes=gateway.routes(), verifier=NoAuth()) as server,
        aiohttp.ClientSession(base_url=server.address) as session,
    ):
        for path in ("/v1/shards/list", "/v1/state/list_replicas"):
            status, failure = await _post(session, path, {})
            assert (status, failure["code"]) == (503, "UNAVAILABLE")
        async with session.get("/v1/shards/watch") as answer:
            assert answer.status == 503


async def test_description_is_openapi_of_what_is_served(cluster: Cluster) -> None:
    """Tools generate clients from it: it is valid, and each of its paths is there."""
    document = openapi()
    validate(document)
    assert "#/components/schemas/consumer.ListResponse" in json.dumps(document)
    codes = document["components"]["schemas"]["consumer.ReplicaStatus"]["properties"]["code"]
    assert codes["enum"] == list(ReplicaStatus.Code.keys())
    async with cluster.member("a", admin_port=0) as member, _http(member) as session:
        async with session.get("/v1/openapi.json") as answer:
            assert await answer.json() == document
        for path, item in document["paths"].items():
            if "post" in item:
                # What an empty request is answered depends on the method, and on whether there is a leader yet.
                assert (await _post(session, path, {}))[0] in (200, 400, 503), path


@pytest.mark.parametrize(
    ("body", "encoding", "told"),
    [
        (b"junk", "gzip", "Content-Encoding"),
        (b"\x1f\x8b\x08" + bytes(40), "gzip", "Content-Encoding"),
        (b"[]", "", "an object"),
        (b" [ ]", "", "an object"),
        (b'""', "", "an object"),
        (b"null", "", "an object"),
    ],
)
async def test_bodies_that_are_no_message_are_the_callers_fault(
    cluster: Cluster, body: bytes, encoding: str, told: str
) -> None:
    """Compressed content that is none ended in a status of 500, and an empty list was taken for an empty message."""
    async with cluster.member("a", admin_port=0) as member, _http(member) as session:
        headers = {"Content-Encoding": encoding} if encoding else {}
        # As a stream: the client compresses other bodies itself, as the header says.
        async with session.post(
            "/v1/shards/list", data=io.BytesIO(body), headers=headers
        ) as answer:
            failure = await answer.json()

    assert (answer.status, failure["code"]) == (400, "INVALID_ARGUMENT")
    assert told in failure["message"]


async def test_shard_is_split_and_merged_over_rest_where_its_application_can(
    cluster: Cluster,
) -> None:
    """Requests pass the checks of the command line's; calls that members make at each other are no paths."""
    async with cluster.member("a", admin_port=0) as member, client_of(member) as client:
        await client.apply(upserts(shard("shard-a", SOURCE)))
        async with _http(member) as session:
            refused = await _post(session, "/v1/elastic/split_shard", {"shard": "shard-a"})
            absent = await _post(session, "/v1/elastic/cancel_merge", {"survivor": "shard-b"})
            listed = await _post(session, "/v1/elastic/list_splits", {})
            of_peers, _ = await _post(session, "/v1/elastic/prepare_fork", {})

    assert refused[0] == 400
    assert "shard: shard shard-a cannot be split, because" in refused[1]["message"]
    assert (absent[0], absent[1]["code"]) == (404, "NOT_FOUND")
    assert listed == (200, {"splits": []})
    assert of_peers == 404
