"""A real gRPC server of the journal service whose answers the test writes: a peer that may break the protocol."""

# ruff: noqa: N802 - methods bear the wire's names
from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from broadsheet.wire import journal_pb2 as pb, journal_pb2_grpc

# `Any`: the generated stubs type a context that serves both kinds of server; tests only abort with it.
Context = Any
ReadHandler = Callable[[pb.ReadRequest, Context], AsyncIterator[pb.ReadResponse]]
AppendHandler = Callable[[AsyncIterator[pb.AppendRequest], Context], Awaitable[pb.AppendResponse]]
ListHandler = Callable[[pb.ListRequest, Context], AsyncIterator[pb.ListResponse]]
ApplyHandler = Callable[[pb.ApplyRequest, Context], Awaitable[pb.ApplyResponse]]
FragmentsHandler = Callable[[pb.FragmentsRequest, Context], Awaitable[pb.FragmentsResponse]]


def header(revision: int = 10) -> pb.Header:
    """Return a valid header of nobody in particular."""
    return pb.Header(
        route=pb.Route(primary=-1),
        etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=revision, raft_term=1),
    )


def metadata(offset: int, begin: int, end: int) -> pb.ReadResponse:
    """Return the metadata of a read at `offset` in the fragment [begin, end)."""
    fragment = pb.Fragment(journal="abcd", begin=begin, end=end, compression_codec=pb.NONE)
    return pb.ReadResponse(header=header(), offset=offset, write_head=end, fragment=fragment)


def committed(begin: int, end: int) -> pb.AppendResponse:
    """Return the answer to an append that landed at [begin, end)."""
    fragment = pb.Fragment(journal="abcd", begin=begin, end=end, compression_codec=pb.NONE)
    return pb.AppendResponse(header=header(), commit=fragment, registers=pb.LabelSet())


def refused(status: pb.Status.ValueType) -> pb.AppendResponse:
    """Return an answer that refuses an append."""
    return pb.AppendResponse(status=status, header=header(), registers=pb.LabelSet())


async def received(requests: AsyncIterator[pb.AppendRequest]) -> tuple[bytes, bool]:
    """Read an append to its end; return its content and whether it was committed."""
    content, last = b"", pb.AppendRequest(journal="none")
    async for request in requests:
        content += request.content
        last = request
    return content, not last.ByteSize()


class ScriptedBroker(journal_pb2_grpc.JournalServicer):
    """Answers with the handlers given, and keeps what was asked."""

    def __init__(
        self,
        *,
        on_read: ReadHandler | None = None,
        on_append: AppendHandler | None = None,
        on_list: ListHandler | None = None,
        on_apply: ApplyHandler | None = None,
        on_fragments: FragmentsHandler | None = None,
        socket: Path | None = None,
    ) -> None:
        """Take a handler for each method that will be called; listen on a socket file if one is given."""
        self._socket = socket
        self._on_read = on_read
        self._on_append = on_append
        self._on_list = on_list
        self._on_apply = on_apply
        self._on_fragments = on_fragments
        self._server = grpc.aio.server()
        self.read_requests: list[pb.ReadRequest] = []
        self.list_requests: list[pb.ListRequest] = []
        self.append_count = 0
        self.apply_count = 0
        self.address = ""

    def add_handler(self, handler: grpc.GenericRpcHandler) -> None:
        """Serve methods beside those of the protocol; called before the broker starts."""
        self._server.add_generic_rpc_handlers((handler,))

    async def __aenter__(self) -> Self:
        journal_pb2_grpc.add_JournalServicer_to_server(self, self._server)
        listen = f"unix:{self._socket}" if self._socket else "127.0.0.1:0"
        port = self._server.add_insecure_port(listen)
        await self._server.start()
        self.address = f"unix://{self._socket}" if self._socket else f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.stop(grace=None)

    async def Read(
        self, request: pb.ReadRequest, context: Context
    ) -> AsyncIterator[pb.ReadResponse]:
        """Answer as the test wrote."""
        self.read_requests.append(request)
        assert self._on_read is not None
        async for response in self._on_read(request, context):
            yield response

    async def List(
        self, request: pb.ListRequest, context: Context
    ) -> AsyncIterator[pb.ListResponse]:
        """Answer as the test wrote."""
        self.list_requests.append(request)
        assert self._on_list is not None
        async for response in self._on_list(request, context):
            yield response

    async def Append(
        self, request_iterator: AsyncIterator[pb.AppendRequest], context: Context
    ) -> pb.AppendResponse:
        """Answer as the test wrote."""
        self.append_count += 1
        assert self._on_append is not None
        return await self._on_append(request_iterator, context)

    async def Apply(self, request: pb.ApplyRequest, context: Context) -> pb.ApplyResponse:
        """Answer as the test wrote."""
        self.apply_count += 1
        assert self._on_apply is not None
        return await self._on_apply(request, context)

    async def ListFragments(
        self, request: pb.FragmentsRequest, context: Context
    ) -> pb.FragmentsResponse:
        """Answer as the test wrote."""
        assert self._on_fragments is not None
        return await self._on_fragments(request, context)

    async def FragmentStoreHealth(self, request: Any, context: Context) -> Any:
        """Never asked."""
        raise NotImplementedError

    def Replicate(self, request_iterator: Any, context: Context) -> Any:
        """Never asked."""
        raise NotImplementedError
