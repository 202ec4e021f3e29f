"""A process's faulty network link to the journal broker, under the real client.

    append ──all of it──► (delay, or lost) ──► the broker appends ──answer──► (delay, or lost) ──► the client
       └── the connection breaks after `IMPATIENCE_SECONDS`: content already sent may still be appended, much later

Calls look like those of gRPC: their messages and their errors. Messages travel outside of the process, so the messages
of a paused process still arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import grpc

from broadsheet.broker.faults import RpcFault
from broadsheet.journals.channels import BulkStub, Tracked
from broadsheet.journals.wire import ReadChunk, append_content, parse_append
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.testing.shards.broker import MemoryBroker, MemoryRead
from broadsheet.wire.appends_pb2 import AppendStreamRequest
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    ApplyResponse,
    ListRequest,
    ListResponse,
    ReadRequest,
    ReadResponse,
)

if TYPE_CHECKING:
    # The generated stubs define this class only for type checking.
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

T = TypeVar("T")

IMPATIENCE_SECONDS: Final = 2.0
"""Time after which a connection without traffic breaks; real ones take long too, and report as little."""
CHUNK_BYTES: Final = (64, 512, 1 << 16)
"""Largest content of a read's message; small, so that frames are cut in the middle."""


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return an error as a gRPC call raises it."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


@dataclass(frozen=True, slots=True)
class _Stub:
    """A stub of the methods that carry no content."""

    List: Callable[..., ListCall]
    Apply: Callable[..., Awaitable[ApplyResponse]]


class SimulatedChannels:
    """Implements `broadsheet.journals.channels.Channels` over a `Link`."""

    def __init__(
        self,
        broker: MemoryBroker,
        link: Link,
        *,
        chunk_bytes: Sequence[int] = CHUNK_BYTES,
    ) -> None:
        """Connect.

        Args:
            broker: The broker that answers.
            link: The link between both.
            chunk_bytes: Largest content of a read's message; one is drawn for each.
        """
        self.default_endpoint = "http://simulated:80"
        self.closed = False
        self._wire = _Wire(broker, link, tuple(chunk_bytes))

    def channel(self, endpoint: str = "") -> grpc.aio.Channel:
        """Refuse, because only the journal service is simulated."""
        raise AssertionError("a simulated process asked for a gRPC channel")

    def stub(self, endpoint: str = "") -> JournalAsyncStub:
        """Return the stub of methods that carry no content."""
        stub = _Stub(self._list, self._apply)
        # It has those methods of the generated class that are used.
        return cast("JournalAsyncStub", stub)

    def bulk(self, endpoint: str = "") -> BulkStub:
        """Return the methods that carry content."""
        # `Any`: plain functions in place of gRPC's callables.
        append: Any = lambda **_: AppendCall(self._wire)  # noqa: E731 - a method of a record
        read: Any = lambda request, **_: ReadCall(self._wire, request)  # noqa: E731 - as above
        return BulkStub(append, read, append_stream=_Starter(self._wire))

    def track(self, endpoint: str, call: Tracked) -> None:
        """Nothing is ever closed for being idle."""

    def state(self, endpoint: str) -> grpc.ChannelConnectivity | None:
        """Return READY, because only sending reveals a broken link."""
        return grpc.ChannelConnectivity.READY

    async def reconnected(self, endpoint: str = "") -> None:
        """Wait for ever, because the link always seems connected."""
        await asyncio.Event().wait()

    async def renew(self, endpoint: str = "") -> None:
        """Do nothing, because no connection can be silently dead."""

    async def sweep(self) -> None:
        """Nothing is ever closed for being idle."""

    async def close(self) -> None:
        """Ignore later messages."""
        self.closed = True

    def _list(self, request: ListRequest, **_: object) -> ListCall:
        return ListCall(self._wire, request)

    async def _apply(self, request: ApplyRequest, **_: object) -> ApplyResponse:
        return await self._wire.ask(lambda broker: broker.apply(request.changes))


class _Wire:
    """Carries the requests and answers of calls."""

    def __init__(self, broker: MemoryBroker, link: Link, chunk_bytes: tuple[int, ...]) -> None:
        self.link = link
        self._broker = broker
        self._chunk_bytes = chunk_bytes
        self._serving: set[asyncio.Task[AppendResponse]] = set()

    async def check(self) -> None:
        """Fail soon if the broker is unreachable."""
        if self.link.cut and self.link.refuses:
            await asyncio.sleep(self.link.latency_seconds[1])
            detail = "failed to connect to all addresses; connection refused"
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, detail)

    async def ask(self, action: Callable[[MemoryBroker], T]) -> T:
        """Send a request to the broker, and return its answer."""
        await self.check()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.link.carry(lambda: self._answer(action(self._broker), answer))
        return await self._answered(answer)

    async def _answered(self, answer: asyncio.Future[T]) -> T:
        """Return the answer, unless the connection breaks first."""
        breaks = self.link.breaks
        try:
            async with asyncio.timeout(IMPATIENCE_SECONDS):
                response = await answer
        except TimeoutError:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "connection reset by peer") from None
        if self.link.breaks != breaks:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")
        return response

    async def ask_in_turn(self, request: AppendStreamRequest.Append) -> AppendResponse:
        """Send an append with predecessors to the broker, and return its answer."""
        await self.check()
        answer: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        self.link.carry(lambda: self._serve(request, answer))
        return await self._answered(answer)

    async def travel(self) -> None:
        """Wait for the latency of a stream's next message; a stream loses no single message, it can only break."""
        breaks = self.link.breaks
        seconds = self.link.travel_seconds()
        await asyncio.sleep(IMPATIENCE_SECONDS if seconds is None else seconds)
        await self.link.wait_mended()
        if seconds is None or self.link.breaks != breaks:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")

    def chunk_bytes_max(self) -> int:
        """Draw the largest content of a read's next message."""
        return self.link.random.choice(self._chunk_bytes)

    def open_read(self, request: ReadRequest) -> MemoryRead | ReadResponse:
        """Start a read at the broker."""
        return self._broker.open_read(request)

    def _serve(
        self, request: AppendStreamRequest.Append, answer: asyncio.Future[AppendResponse]
    ) -> None:
        # The broker's read goes on after the client is gone, as one does whose end was not noticed yet.
        serving = self._broker.append_in_turn(request)
        task = asyncio.ensure_future(serving)  # noqa: TID251 - a task of no process; kept until done
        self._serving.add(task)
        task.add_done_callback(partial(self._on_served, answer))

    def _on_served(
        self, answer: asyncio.Future[AppendResponse], task: asyncio.Task[AppendResponse]
    ) -> None:
        self._serving.discard(task)
        if task.cancelled():
            return
        fault = task.exception()
        if fault is None:
            self._answer(task.result(), answer)
            return
        assert isinstance(fault, RpcFault), fault
        error = rpc_error(fault.code, fault.text)
        self.link.carry(lambda: None if answer.done() else answer.set_exception(error))

    def _answer(self, response: T, answer: asyncio.Future[T]) -> None:
        self.link.carry(lambda: None if answer.done() else answer.set_result(response))


class AppendCall:
    """A call of Append, whose messages are sent together with the last one."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._request: AppendRequest | None = None
        self._content: list[bytes] = []
        self._committed = False

    async def write(self, message: AppendRequest | bytes) -> None:
        """Send a message; on a broken connection it fails, and the append is not committed."""
        await self._wire.check()
        if isinstance(message, bytes):
            content = append_content(message)
            assert content is not None, "coded by hand is content only"
            self._content.append(bytes(content))
        elif self._request is None:
            self._request = parse_append(message.SerializeToString())
        else:
            self._committed = not message.ByteSize()

    async def done_writing(self) -> None:
        """Half-close."""

    def cancel(self) -> bool:
        """Ignore the answer; messages already sent still arrive."""
        return True

    def __await__(self) -> Generator[Any, None, AppendResponse]:
        return self._response().__await__()

    async def _response(self) -> AppendResponse:
        await self._wire.check()
        request = self._request
        if request is None or not self._committed:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")
        content = b"".join(self._content)
        return await self._wire.ask(lambda broker: broker.append(request, content))


class _Starter:
    """Starts appends in one message each. Unlike on a shared stream, each one fails or succeeds independently."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def start(
        self,
        append: AppendStreamRequest.Append,
        content: Sequence[bytes | memoryview] = (),
        *,
        timeout_seconds: float,
    ) -> WholeAppendCall:
        """Return a call that is sent once it is awaited."""
        del timeout_seconds
        append.content = b"".join(content)
        return WholeAppendCall(self._wire, append)


class WholeAppendCall:
    """A call of an append in one message, after its predecessors if it names any."""

    def __init__(self, wire: _Wire, append: AppendStreamRequest.Append) -> None:
        self._wire = wire
        self._request = append

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Do nothing, because no resource is held for the call."""

    def cancel(self) -> bool:
        """Ignore the answer; messages already sent still arrive."""
        return True

    def __await__(self) -> Generator[Any, None, AppendResponse]:
        return self._wire.ask_in_turn(self._request).__await__()


class ReadCall:
    """A call of Read."""

    def __init__(self, wire: _Wire, request: ReadRequest) -> None:
        self._wire = wire
        self._request = request
        self._read: MemoryRead | None = None
        self._over = False
        self._breaks = wire.link.breaks

    # `Any`: a message, or gRPC's mark for the end.
    async def read(self) -> Any:
        """Return the next message."""
        if self._over:
            return grpc.aio.EOF
        if self._read is None:
            await self._wire.check()
            await self._wire.travel()
            opened = self._wire.open_read(self._request)
            if isinstance(opened, ReadResponse):
                self._over = True
                return await self._arrived(opened)
            self._read = opened
        return await self._arrived(await self._read.next(self._wire.chunk_bytes_max()))

    def cancel(self) -> bool:
        """Stop reading."""
        self._over = True
        return True

    async def _arrived(self, message: ReadResponse | ReadChunk | None) -> Any:
        await self._wire.travel()
        if self._wire.link.breaks != self._breaks:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")
        if message is None:
            self._over = True
            return grpc.aio.EOF
        return message


class ListCall:
    """A call of List for the current journals; watches are not simulated."""

    def __init__(self, wire: _Wire, request: ListRequest) -> None:
        assert not request.watch, "a simulated process watches the listing"
        self._wire = wire
        self._request = request
        self._over = False

    # `Any`: a message, or gRPC's mark for the end.
    async def read(self) -> Any:
        """Return the listing, then the end."""
        if self._over:
            return grpc.aio.EOF
        self._over = True
        response: ListResponse = await self._wire.ask(
            lambda broker: broker.list(self._request.selector)
        )
        return response

    def cancel(self) -> bool:
        """Stop reading."""
        self._over = True
        return True
