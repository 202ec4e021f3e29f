"""Each method of members and brokers asks for the capability that docs/security.md says."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from broadsheet.broker.config import BrokerConfig
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.wire.appends_pb2 import AppendStreamRequest, AppendStreamResponse
from broadsheet.wire.fragments_pb2 import VerifyJournalRequest
from tests.support.members import Cluster
from tests.support.rpc_table import NO_TOKEN, NOT_SERVED, Needs, rpc_table

pytestmark = pytest.mark.etcd

KEYS = b64encode(b"a key of members and brokers, 32 bytes or more").decode()
AUTH = KeyedAuth(KEYS)
BROKER_SERVICES = (
    "protocol.Journal",
    "broadsheet.v1.AppendService",
    "broadsheet.v1.FragmentService",
)
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
DISCARD = VerifyJournalRequest(journal="test/none", discard_damaged=True)
REQUESTS: dict[str, Message] = {
    # Judged before what a method asks for is looked at, with two exceptions.
    "broadsheet.v1.FragmentService/VerifyJournal": VerifyJournalRequest(journal="test/none"),
    "broadsheet.v1.AppendService/AppendStream": AppendStreamRequest(
        appends=[AppendStreamRequest.Append()]
    ),
}


@pytest.fixture
async def addresses(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, tmp_path: Path
) -> AsyncIterator[dict[bool, str]]:
    """Yield the addresses of a broker (True) and of a member (False), both with keys."""
    config = BrokerConfig(data_dir=tmp_path / "broker", auth_keys=KEYS)
    async with EmbeddedBroker(tmp_path, config=config) as broker:
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            settings={"auth_keys": KEYS, "broker_auth_keys": KEYS},
        )
        async with cluster.member("a") as service:
            yield {True: broker.address, False: service.address}


async def _status(
    channel: grpc.aio.Channel, needs: Needs, request: Message, capability: Capability | None
) -> grpc.StatusCode:
    """Return the status of a call with a token for this capability only; None: without a token."""
    metadata = () if capability is None else AUTH.metadata(Claims(capability=capability))
    method = needs.descriptor
    kind = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    # `Any`: calls differ in kind and messages, and these are raw.
    make: Any = kind(f"/{needs.method}")
    if needs.method.endswith("/AppendStream"):
        return await _append_status(make, dict(metadata))
    sent = request.SerializeToString()
    call = make(iter([sent]) if method.client_streaming else sent, metadata=metadata, timeout=60)
    try:
        if not method.server_streaming:
            await call
        # The first answer shows that the call was let through; some streams never end.
        elif await call.read() is not grpc.aio.EOF:
            call.cancel()
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()  # type: ignore[no-any-return]


async def _append_status(make: Any, metadata: dict[str, str]) -> grpc.StatusCode:
    """Return the status that answers one append of a stream, which has a token of its own."""
    append = AppendStreamRequest.Append(metadata=metadata)
    call = make(iter([AppendStreamRequest(appends=[append]).SerializeToString()]), timeout=60)
    [answer] = AppendStreamResponse.FromString(await call.read()).answers
    return next(each for each in grpc.StatusCode if each.value[0] == answer.code)


async def _probe(channel: grpc.aio.Channel, needs: Needs, request: Message) -> list[str]:
    """Return what is wrong with one method."""
    assert needs.capability is not None
    others = Capability(Capability.ALL & ~needs.capability)
    found = [await _status(channel, needs, request, each) for each in (None, others)]
    wrong = [
        f"{needs.method} {given}: expected {wanted.name}, got {status.name}"
        for given, wanted, status in zip(
            ("without a token", "lacking"), REFUSED, found, strict=True
        )
        if status is not wanted
    ]
    status = await _status(channel, needs, request, needs.capability)
    if status in (*REFUSED, grpc.StatusCode.UNIMPLEMENTED):
        wrong.append(f"{needs.method} with {needs.capability!r} alone: got {status.name}")
    return wrong


async def test_each_method_needs_the_capability_of_its_row(addresses: dict[bool, str]) -> None:
    """Plan: call each method of every service without a token, with a token that has every capability but the method's,
    and with one that has only that. A method that its guard does not know would be open, or closed, unnoticed.
    """
    wrong: list[str] = []
    served = 0
    for is_broker, address in addresses.items():
        async with grpc.aio.insecure_channel(address.removeprefix("http://")) as channel:
            for needs in rpc_table().values():
                if not needs.is_standard and (needs.service in BROKER_SERVICES) is not is_broker:
                    continue
                request = REQUESTS.get(needs.method, needs.empty_request())
                if needs.needs == NOT_SERVED:
                    status = await _status(channel, needs, request, Capability.ALL)
                    assert status is grpc.StatusCode.UNIMPLEMENTED
                elif needs.needs == NO_TOKEN:
                    assert await _status(channel, needs, request, None) is grpc.StatusCode.OK
                else:
                    wrong += await _probe(channel, needs, request)
                    served += 1

    assert wrong == []
    assert served > 40


async def test_giving_up_damaged_content_takes_the_right_to_delete(
    addresses: dict[bool, str],
) -> None:
    """Whoever may verify a journal reads it; discarding what is damaged removes bytes for good."""
    needs = rpc_table()["broadsheet.v1.FragmentService/VerifyJournal"]
    async with grpc.aio.insecure_channel(addresses[True].removeprefix("http://")) as channel:
        reader = await _status(channel, needs, DISCARD, Capability.READ)
        changer = await _status(channel, needs, DISCARD, Capability.APPLY)

    assert reader is grpc.StatusCode.PERMISSION_DENIED
    assert changer is grpc.StatusCode.OK
