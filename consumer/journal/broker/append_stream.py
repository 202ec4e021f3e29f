"""The AppendStream RPC: many appends on one call, each answered when it is done.

    messages ─► take ─► one task an append ─► answers, in the order in which appends end

Source: consumer/protocol/appends.proto. A failure that would end a call of its own ends its append alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import grpc
import structlog

from allocator.runtime.task_group import TaskGroup
from consumer.journal.append_messages import WholeAppend
from consumer.journal.broker.append import AppendHandler
from consumer.journal.broker.catalogue import Catalogue
from consumer.journal.broker.faults import Context, RpcFault, answered, fault_of
from consumer.journal.broker.journals import Journals
from consumer.protocol.appends_pb2 import AppendStreamResponse

logger = structlog.get_logger()

UNDER_WAY_MAX, UNDER_WAY_BYTES_MAX = 1024, 64 << 20
"""Appends of a stream that are not answered yet, and their content; with more, no further message is read."""


class AppendStreamHandler:
    """Serves streams of appends."""

    def __init__(self, appends: AppendHandler, catalogue: Catalogue, journals: Journals) -> None:
        self._appends = appends
        self._catalogue = catalogue
        self._journals = journals

    async def serve(self, requests: object, context: Context) -> None:
        """Serve one stream until the client half-closes or the broker stops; what was taken by then is answered."""
        del requests  # read from the context, which can be cut off
        async with answered(context):
            await _Stream(self._appends, context).run(self._until_stopping)

    async def _until_stopping(self) -> None:
        while not self._journals.stopping:
            await self._catalogue.changed.wait()


class _Stream:
    """One stream."""

    def __init__(self, appends: AppendHandler, context: Context) -> None:
        self._appends = appends
        self._context = context
        self._under_way = self._under_way_bytes = 0
        self._ended = asyncio.Event()
        """Set whenever an append has been answered."""
        self._writing = asyncio.Lock()

    async def run(self, until_stopping: Callable[[], Coroutine[object, object, None]]) -> None:
        async with TaskGroup() as group:
            taking = group.start_soon(self._take(group), name="take appends")
            stopping = group.start_soon(until_stopping(), name="until stopping")
            await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            taking.cancel()
            await self._wait_until_under_way(0)
            group.stop()

    async def _take(self, group: TaskGroup) -> None:
        while True:
            message = await self._context.read()
            if message is grpc.aio.EOF:
                return
            assert isinstance(message, list), "a method takes its requests"
            for whole in message:
                self._under_way += 1
                self._under_way_bytes += whole.size
                journal = whole.append.parameters.journal
                group.start_soon(self._serve(whole), name=f"append:{journal}")
            await self._wait_until_under_way(UNDER_WAY_MAX, UNDER_WAY_BYTES_MAX)

    async def _wait_until_under_way(self, count: int, bytes_: int = 0) -> None:
        while self._under_way > count or self._under_way_bytes > bytes_:
            self._ended.clear()
            await self._ended.wait()

    async def _serve(self, whole: WholeAppend) -> None:
        try:
            answer = await self._answer_of(whole)
            async with self._writing:
                await self._context.write(AppendStreamResponse(answers=[answer]))
        finally:
            self._under_way -= 1
            self._under_way_bytes -= whole.size
            self._ended.set()

    async def _answer_of(self, whole: WholeAppend) -> AppendStreamResponse.Answer:
        number = whole.append.number
        try:
            response = await self._appends.append_whole(whole)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Its journal's committer was: the broker stops.
            fault = RpcFault(grpc.StatusCode.UNAVAILABLE, "the append was given up")
        except Exception as error:
            fault = fault_of(error) or _unforeseen(error)
        else:
            return AppendStreamResponse.Answer(number=number, append=response)
        return AppendStreamResponse.Answer(
            number=number, code=fault.code.value[0], detail=fault.text
        )


def _unforeseen(error: Exception) -> RpcFault:
    logger.error("append.unforeseen", exc_info=error)
    return RpcFault(grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}: {error}")
