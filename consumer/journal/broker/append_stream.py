"""The AppendStream RPC: many appends on one call, each answered when it is done.

    messages ─► take ─► one task an append ─► answers, in the order in which appends end ─► write

An append that another one of the stream comes after has no answer of its own to itself: both go in one message, unless
the other takes long. Of a transaction, only the last append is waited for.

Source: consumer/protocol/appends.proto. A failure that would end a call of its own ends its append alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable

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
HOLD_SECONDS_MAX = 0.05
"""Longest wait of an answer for that of an append which comes after its own."""


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
        self._awaited: Counter[bytes] = Counter()
        """Names that appends under way come after, and how many of them."""
        self._answers: list[tuple[AppendStreamResponse.Answer, int]] = []
        """Not sent yet, and the bytes of each append's content."""
        self._answered = asyncio.Event()
        """Set when they are to be sent."""
        self._holding: asyncio.TimerHandle | None = None
        """Sends them at the latest."""

    async def run(self, until_stopping: Callable[[], Coroutine[object, object, None]]) -> None:
        async with TaskGroup() as group:
            group.start_soon(self._write(), name="write answers")
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
                self._awaited.update(whole.append.after)
                journal = whole.append.parameters.journal
                group.start_soon(self._serve(whole), name=f"append:{journal}")
            await self._wait_until_under_way(UNDER_WAY_MAX, UNDER_WAY_BYTES_MAX)

    async def _wait_until_under_way(self, count: int, bytes_: int = 0) -> None:
        while self._under_way > count or self._under_way_bytes > bytes_:
            self._ended.clear()
            await self._ended.wait()

    async def _serve(self, whole: WholeAppend) -> None:
        answer = await self._answer_of(whole)
        self._await_no_more(whole.append.after)
        self._answers.append((answer, whole.size))
        if whole.append.name not in self._awaited:
            self._answered.set()
        elif self._holding is None:
            loop = asyncio.get_running_loop()
            self._holding = loop.call_later(HOLD_SECONDS_MAX, self._answered.set)

    def _await_no_more(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._awaited[name] -= 1
            if not self._awaited[name]:
                del self._awaited[name]

    async def _write(self) -> None:
        while True:
            await self._answered.wait()
            self._answered.clear()
            if self._holding is not None:
                self._holding.cancel()
                self._holding = None
            answers, self._answers = self._answers, []
            await self._context.write(AppendStreamResponse(answers=[each for each, _ in answers]))
            self._under_way -= len(answers)
            self._under_way_bytes -= sum(size for _, size in answers)
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
