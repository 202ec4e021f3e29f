"""Talking to a broker without our own client: plain stubs, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
from google.protobuf.duration_pb2 import Duration

from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    CompressionCodec,
    JournalSpec,
    LabelSet,
    ReadRequest,
    ReadResponse,
)
from broadsheet.wire.journal_pb2_grpc import JournalStub

if TYPE_CHECKING:
    # Generated stubs name the asynchronous class in their types only.
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")
RPC_TIMEOUT_SECONDS = 20.0


def journal_spec(
    name: str, *, length: int = 1 << 26, labels: LabelSet | None = None, **fields: Any
) -> JournalSpec:
    """Return a valid spec. `Any`: the remaining fields differ in type."""
    return JournalSpec(
        name=name,
        replication=1,
        labels=labels,
        fragment=JournalSpec.Fragment(
            length=length,
            compression_codec=CompressionCodec.NONE,
            refresh_interval=Duration(seconds=60),
        ),
        **fields,
    )


@asynccontextmanager
async def broker_stub(address: str) -> AsyncIterator[JournalAsyncStub]:
    """Yield a plain stub of the broker at a URL."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address.removeprefix("http://"), options) as channel:
        yield JournalStub(channel)


async def apply_specs(
    stub: JournalAsyncStub, *specs: JournalSpec, expect: int = -1
) -> ApplyResponse:
    """Create or update journals."""
    changes = [ApplyRequest.Change(upsert=spec, expect_mod_revision=expect) for spec in specs]
    return await stub.Apply(ApplyRequest(changes=changes), timeout=RPC_TIMEOUT_SECONDS)


async def send_append(stub: JournalAsyncStub, messages: Sequence[AppendRequest]) -> AppendResponse:
    """Send the given messages, half-close and return the response."""
    call = stub.Append(timeout=RPC_TIMEOUT_SECONDS)
    try:
        for message in messages:
            await call.write(message)
        await call.done_writing()
    except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError):
        pass  # an early answer, or a broken connection: the call itself knows which
    response: AppendResponse = await call
    return response


async def append(
    stub: JournalAsyncStub, journal: str, *chunks: bytes, **parameters: Any
) -> AppendResponse:
    """Append chunks as one span. `Any`: the parameters of the first message differ in type."""
    first = AppendRequest(journal=journal, **parameters)
    content = [AppendRequest(content=chunk) for chunk in chunks]
    return await send_append(stub, [first, *content, AppendRequest()])


async def next_message(call: grpc.aio.UnaryStreamCall[Request, Response]) -> Response:
    """Return the next message of a stream that must not have ended."""
    message = await call.read()
    assert message is not grpc.aio.EOF, "the stream has ended"
    return cast("Response", message)


@dataclass(slots=True)
class Got:
    """What a read delivered."""

    metadata: list[ReadResponse] = field(default_factory=list)
    chunks: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def content(self) -> bytes:
        """All bytes, in the order of their arrival."""
        return b"".join(chunk for _, chunk in self.chunks)

    @property
    def last_status(self) -> int:
        """Status of the last metadata message."""
        return self.metadata[-1].status


async def read(stub: JournalAsyncStub, journal: str, **parameters: Any) -> Got:
    """Read until the broker ends the stream. `Any`: the parameters differ in type."""
    got = Got()
    request = ReadRequest(journal=journal, **parameters)
    async for message in stub.Read(request, timeout=RPC_TIMEOUT_SECONDS):
        if message.content:
            got.chunks.append((message.offset, message.content))
        else:
            got.metadata.append(message)
    return got
