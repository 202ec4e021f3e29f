"""Appends to one broker over one call that stays open: a message there and a message back each, in place of a call.

    start ─► queue ─► writer ─► broker ─► reader ─► the append's future
             what is queued while a message is sent goes into the next one

A stream is opened by the first append, and anew by the first after it broke. Then every append under way fails as its
own call would have: nobody knows which of them were done.

Source: consumer/protocol/appends.proto.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import grpc

from allocator.runtime.task_group import TaskGroup
from consumer.protocol.appends_pb2 import AppendStreamRequest, AppendStreamResponse
from consumer.protocol.journal_pb2 import AppendResponse

MESSAGE_BYTES_MAX = 256 << 10
"""Content of appends that share a message, unless one alone is larger."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}

OpenStream = grpc.aio.StreamStreamMultiCallable[AppendStreamRequest, AppendStreamResponse]


class StreamedAppend:
    """One append under way. Await it for its answer, as a call."""

    def __init__(
        self,
        answer: asyncio.Future[AppendResponse],
        timeout_seconds: float,
        lost: Callable[[], object],
    ) -> None:
        self._answer = answer
        self._timeout_seconds = timeout_seconds
        self._lost = lost

    def cancel(self) -> bool:
        """Take no interest in the answer; the append may be done all the same."""
        return self._answer.cancel()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have `callback` called once the append is answered, has failed or was cancelled."""
        self._answer.add_done_callback(callback)

    def __await__(self) -> Generator[Any, None, AppendResponse]:
        return self._wait().__await__()

    async def _wait(self) -> AppendResponse:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._answer
        except TimeoutError:
            self._lost()
            raise _rpc_error(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"after {self._timeout_seconds:g} s"
            ) from None


class AppendStream:
    """Appends over one stream at a time. Lives on the event loop."""

    def __init__(self, open_stream: OpenStream) -> None:
        """Open nothing yet.

        Args:
            open_stream: The method.
        """
        self._open_stream = open_stream
        self._numbers = itertools.count(1)
        self._queue: deque[AppendStreamRequest.Append] = deque()
        self._queued = asyncio.Event()
        self._answers: dict[int, asyncio.Future[AppendResponse]] = {}
        self._running: asyncio.Task[None] | None = None

    def start(
        self, append: AppendStreamRequest.Append, *, timeout_seconds: float
    ) -> StreamedAppend:
        """Send an append soon, behind those before it; never blocks.

        Args:
            append: All of it but its number.
            timeout_seconds: Longest wait for the answer; then the broker is taken for dead, and the stream is broken.
        """
        append.number = next(self._numbers)
        answer: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        self._answers[append.number] = answer
        self._queue.append(append)
        self._queued.set()
        if self._running is None:
            # Of no group: it lives as long as the channel, whose owner closes it.
            self._running = asyncio.create_task(self._run(), name="append stream")  # noqa: TID251
        running = self._running
        return StreamedAppend(answer, timeout_seconds, running.cancel)

    async def close(self) -> None:
        """End the stream; what is under way fails. Idempotent."""
        running = self._running
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _run(self) -> None:
        error = _rpc_error(grpc.StatusCode.UNAVAILABLE, "the stream of appends was closed")
        call = self._open_stream()
        try:
            async with TaskGroup() as group:
                group.start_soon(self._write(call), name="write appends")
                await self._read(call)
                group.stop()
            error = _rpc_error(grpc.StatusCode.UNAVAILABLE, "the broker ended the stream")
        except grpc.aio.AioRpcError as failure:
            error = failure
        finally:
            call.cancel()
            self._running = None
            self._queue.clear()
            self._fail(error)

    async def _write(
        self, call: grpc.aio.StreamStreamCall[AppendStreamRequest, AppendStreamResponse]
    ) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                try:
                    await call.write(AppendStreamRequest(appends=self._take_queued()))
                except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError):
                    return  # The reader learns why.

    def _take_queued(self) -> list[AppendStreamRequest.Append]:
        taken, size = [self._queue.popleft()], 0
        while self._queue:
            size += len(taken[-1].content)
            if size + len(self._queue[0].content) > MESSAGE_BYTES_MAX:
                break
            taken.append(self._queue.popleft())
        return taken

    async def _read(
        self, call: grpc.aio.StreamStreamCall[AppendStreamRequest, AppendStreamResponse]
    ) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return
            assert isinstance(message, AppendStreamResponse), "a method returns its responses"
            for answer in message.answers:
                self._resolve(answer)

    def _resolve(self, answer: AppendStreamResponse.Answer) -> None:
        future = self._answers.pop(answer.number, None)
        if future is None or future.done():
            return
        if answer.code:
            code = _CODES.get(answer.code, grpc.StatusCode.UNKNOWN)
            future.set_exception(_rpc_error(code, answer.detail))
        else:
            future.set_result(answer.append)

    def _fail(self, error: grpc.aio.AioRpcError) -> None:
        answers, self._answers = self._answers, {}
        for future in answers.values():
            if not future.done():
                future.set_exception(error)


def _rpc_error(code: grpc.StatusCode, detail: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=detail)
