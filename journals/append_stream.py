"""Appends to one broker over one call that stays open: one message each way instead of a call each.

    start ─► queue ─► writer ─► broker ─► reader ─► the append's future
             appends queued within two turns of the loop, or while a message is sent, share the next message

The first append opens a stream, and after a break the next append opens another. At a break every append in progress
fails with UNAVAILABLE, regardless of the stream's status, because it is unknown which of them were done.

Before its first stream, a broker is asked by a call without appends whether it takes any: one that does not may refuse
the method while a message is being written, and gRPC may then show a status that proves nothing about that message.

Source: consumer/protocol/appends.proto.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias

import grpc

from broadsheet.journals.append_wire import WholeAppend, encode_appends
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.appends_pb2 import AppendStreamRequest, AppendStreamResponse
from broadsheet.wire.journal_pb2 import AppendResponse

MESSAGE_BYTES_MAX = 256 << 10
"""Most content of appends that share a message, unless one alone is larger."""
MESSAGE_APPENDS_MAX = 256
"""Most appends that share a message: brokers bound a message, and each append has parameters and a token, too."""
GATHERING_TURNS = 2
"""Turns of the loop before a message is made. A transaction's acknowledgement is queued right after its commit, and
another message would cost both sides ten times as much as these turns.
"""
_CODES = {code.value[0]: code for code in grpc.StatusCode}

# Encoded by hand. In quotes, because not every supported grpcio has generic classes at run time.
OpenStream: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, AppendStreamResponse]"
AskForStreams: TypeAlias = "grpc.aio.UnaryStreamMultiCallable[bytes, AppendStreamResponse]"


class AppendNotSentError(grpc.aio.AioRpcError):
    """An append was not sent, because no stream could be opened; its code is that of the refusal."""


class StreamedAppend:
    """One append in progress. Await it for its answer, as a call."""

    def __init__(
        self,
        answer: asyncio.Future[AppendResponse],
        timeout_seconds: float,
        on_overdue: Callable[[], object],
    ) -> None:
        self._answer = answer
        self._timeout_seconds = timeout_seconds
        self._on_overdue = on_overdue

    def cancel(self) -> bool:
        """Give up the answer; the append may be done all the same."""
        return self._answer.cancel()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Register a callback for when the append is answered, has failed or was cancelled."""
        self._answer.add_done_callback(callback)

    def __await__(self) -> Generator[Any, None, AppendResponse]:
        return self._wait().__await__()

    async def _wait(self) -> AppendResponse:
        # A timer of the answer itself, because a block of `asyncio.timeout` costs a row a dozen calls.
        timer = asyncio.get_running_loop().call_later(self._timeout_seconds, self._expire)
        try:
            return await self._answer
        finally:
            timer.cancel()

    def _expire(self) -> None:
        if not self._answer.done():
            self._on_overdue()
            late = _rpc_error(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"after {self._timeout_seconds:g} s"
            )
            self._answer.set_exception(late)


class AppendStream:
    """Appends over one stream at a time. Lives on the event loop."""

    def __init__(self, open_stream: OpenStream, ask: AskForStreams) -> None:
        """Create the sender; a stream is opened by the first append.

        Args:
            open_stream: The method.
            ask: The same method for a single message, by which nothing is appended.
        """
        self._open_stream = open_stream
        self._ask = ask
        self._is_supported = False
        """Whether the broker has answered that it takes streams. Before that, nothing is sent."""
        self._numbers = itertools.count(1)
        self._queue: deque[WholeAppend] = deque()
        self._queued = asyncio.Event()
        self._answers: dict[int, asyncio.Future[AppendResponse]] = {}
        self._running: asyncio.Task[None] | None = None
        self._heard = 0
        """Number of messages that came back over the stream."""

    def start(
        self,
        append: AppendStreamRequest.Append,
        content: Sequence[bytes | memoryview] = (),
        *,
        timeout_seconds: float,
    ) -> StreamedAppend:
        """Send an append soon, after earlier ones; never blocks.

        Args:
            append: All of it but its number and its content.
            content: In order; kept until it is sent, and not copied before.
            timeout_seconds: Longest wait for the answer. If nothing at all came meanwhile, the broker is taken for
                dead, and the stream is broken.
        """
        append.number = next(self._numbers)
        answer: asyncio.Future[AppendResponse] = asyncio.get_running_loop().create_future()
        self._answers[append.number] = answer
        self._queue.append(WholeAppend(append, content))
        self._queued.set()
        if self._running is None:
            # A task outside any group: it lives as long as the channel, whose owner closes it.
            self._running = asyncio.create_task(self._run(), name="append stream")  # noqa: TID251
            self._running.add_done_callback(self._on_ended)
            self._heard = 0
        overdue = partial(self._on_overdue, self._running, self._heard)
        return StreamedAppend(answer, timeout_seconds, overdue)

    def _on_overdue(self, running: asyncio.Task[None], heard: int) -> None:
        # Any message since then shows that the broker is alive, and only this append is slow.
        if running is self._running and heard == self._heard:
            running.cancel()

    async def close(self) -> None:
        """End the stream; appends in progress fail. Idempotent."""
        running = self._running
        if running is not None:
            running.cancel()
            # Not `await running`, which would confuse our own cancellation with the stream's.
            await asyncio.wait({running})

    async def _run(self) -> None:
        if not self._is_supported:
            # The whole request goes in one operation, so that no write can meet the refusal.
            async for _ in self._ask(b""):
                continue
            self._is_supported = True
        call = self._open_stream()
        try:
            async with TaskGroup() as group:
                group.start_soon(self._write(call), name="write appends")
                await self._read(call)
                group.stop()
        finally:
            call.cancel()

    def _on_ended(self, ended: asyncio.Task[None]) -> None:
        """Fail the appends in progress, even if the stream ended before it began."""
        self._running = None
        self._queue.clear()
        failure = None if ended.cancelled() else ended.exception()
        code = failure.code() if isinstance(failure, grpc.aio.AioRpcError) else None
        error: grpc.aio.AioRpcError
        # On a stream that has worked, UNIMPLEMENTED does not mean that the method is missing.
        if code is grpc.StatusCode.UNIMPLEMENTED and not self._heard:
            error = _not_sent(code, "the broker does not support append streams")
        elif not self._is_supported:
            problem = "it was closed" if failure is None else str(failure)
            error = _not_sent(
                code or grpc.StatusCode.UNAVAILABLE, f"no append stream was opened: {problem}"
            )
        else:
            # Another code would describe the stream, but be taken for an append's outcome.
            problem = "it ended" if failure is None else str(failure)
            error = _rpc_error(grpc.StatusCode.UNAVAILABLE, f"the append stream broke: {problem}")
        answers, self._answers = self._answers, {}
        for future in answers.values():
            if not future.done():
                future.set_exception(error)

    async def _write(self, call: grpc.aio.StreamStreamCall[bytes, AppendStreamResponse]) -> None:
        while True:
            await self._queued.wait()
            for _ in range(GATHERING_TURNS):
                await asyncio.sleep(0)
            self._queued.clear()
            while self._queue:
                try:
                    await call.write(encode_appends(self._take_queued()))
                except (asyncio.InvalidStateError, grpc.aio.AioRpcError, grpc.aio.InternalError):
                    return  # The reader raises the actual error.

    def _take_queued(self) -> list[WholeAppend]:
        taken, size = [self._queue.popleft()], 0
        while self._queue:
            size += taken[-1].size
            if size + self._queue[0].size > MESSAGE_BYTES_MAX or len(taken) >= MESSAGE_APPENDS_MAX:
                break
            taken.append(self._queue.popleft())
        return taken

    async def _read(self, call: grpc.aio.StreamStreamCall[bytes, AppendStreamResponse]) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return
            assert isinstance(message, AppendStreamResponse), "a method returns its responses"
            self._heard += 1
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


def _not_sent(code: grpc.StatusCode, detail: str) -> AppendNotSentError:
    return AppendNotSentError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=detail)


def _rpc_error(code: grpc.StatusCode, detail: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=detail)
