"""The AppendStream RPC: many appends on one call, each answered when it is done.

    messages ─► take ─► one task per append ─► answers, in the order in which appends end ─► write

The answer to an append that another one of the stream follows is held back, so that both go in one message, unless the
successor takes long. Clients wait only for the last append of a transaction.

Source: consumer/protocol/appends.proto. A failure that would end a separate call ends its append alone; a message that
cannot be decoded ends the stream, with INVALID_ARGUMENT, after the answers to the appends before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence

import grpc
import structlog
from google.protobuf.message import DecodeError

from broadsheet.broker.append import AppendHandler
from broadsheet.broker.catalogue import Catalogue
from broadsheet.broker.faults import Context, RpcFault, fault_of, malformed_fault
from broadsheet.broker.journals import Journals
from broadsheet.broker.limits import STALLED_SECONDS, BrokerLimits, Level, stalled
from broadsheet.journals.append_wire import WholeAppend, decode_appends
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.appends_pb2 import AppendStreamResponse

_log = structlog.get_logger()

UNDER_WAY_MAX, UNDER_WAY_BYTES_MAX = 1024, 64 << 20
"""Appends of a stream that are not yet answered, and their content; above these, no further message is read."""
APPEND_BYTES = 1024
"""Approximate memory of an append beside its content."""
HOLD_SECONDS_MAX = 0.05
"""Longest time for which an answer waits for that of a successor."""


class AppendStreamHandler:
    """Serves streams of appends."""

    def __init__(
        self, appends: AppendHandler, catalogue: Catalogue, journals: Journals, limits: BrokerLimits
    ) -> None:
        self._appends = appends
        self._catalogue = catalogue
        self._journals = journals
        self._limits = limits
        self._streams: set[_Stream] = set()
        """Open streams."""

    async def serve(self, requests: object, context: Context) -> None:
        """Serve one stream until the client half-closes or the broker stops; appends taken by then are answered."""
        del requests  # read from the context, because that can be cut off
        with self._limits.append_streams.taken(context.peer()):
            stream = _Stream(self._appends, context, self._limits.append_bytes, self._streams)
            self._streams.add(stream)
            try:
                await stream.run(self._until_stopping)
            finally:
                self._streams.discard(stream)

    async def _until_stopping(self) -> None:
        while not self._journals.stopping:
            await self._catalogue.changed.wait()


class _Batch:
    """The appends of one message. Their contents are views of it, so its memory is free when the last one is done."""

    def __init__(self, appends: Sequence[WholeAppend]) -> None:
        self.size = sum(whole.size for whole in appends) + len(appends) * APPEND_BYTES
        """Bytes of their contents."""
        self._left = len(appends)

    def is_last(self) -> bool:
        """Count one append as done, and tell whether all are."""
        self._left -= 1
        return not self._left


class _Stream:
    """One stream."""

    def __init__(
        self,
        appends: AppendHandler,
        context: Context,
        content: Level,
        streams: Collection[_Stream],
    ) -> None:
        self._appends = appends
        self._content = content
        self._streams = streams
        self._timeout = asyncio.timeout(None)
        self.held = 0
        """Bytes of messages with unfinished appends."""
        self.silent_since: float | None = None
        """Time when the present write of answers began, on the loop's clock; None while there is none."""
        self.is_cut_off = False
        self._malformed: RpcFault | None = None
        """Why no further message is read."""
        self._context = context
        self._under_way = self._under_way_bytes = 0
        self._ended = asyncio.Event()
        """Set whenever an append has been answered."""
        self._awaited: Counter[bytes] = Counter()
        """Names of predecessors, and the number of appends in progress that wait for each."""
        self._answers: list[tuple[AppendStreamResponse.Answer, int]] = []
        """Answers not sent yet, each with the length of the append's content."""
        self._answered = asyncio.Event()
        """Set when the answers are to be sent."""
        self._holding: asyncio.TimerHandle | None = None
        """Timer that sends held answers at the latest."""

    async def run(self, until_stopping: Callable[[], Coroutine[object, object, None]]) -> None:
        try:
            async with self._timeout:
                await self._run(until_stopping)
        except TimeoutError:
            if not self.is_cut_off:
                raise
            problem = (
                "the client reads no answers, and others need the memory that its appends hold"
            )
            raise RpcFault(grpc.StatusCode.RESOURCE_EXHAUSTED, problem) from None
        finally:
            self._content.give_back(self.held)

    def cut_off(self) -> None:
        """End the stream, because its client reads no answers."""
        self.is_cut_off = True
        self._timeout.reschedule(0.0)

    async def _run(self, until_stopping: Callable[[], Coroutine[object, object, None]]) -> None:
        async with TaskGroup() as group:
            group.start_soon(self._write(), name="write answers")
            taking = group.start_soon(self._take(group), name="take appends")
            stopping = group.start_soon(until_stopping(), name="until stopping")
            await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            taking.cancel()
            await self._wait_until_under_way(0)
            group.stop()
        if self._malformed is not None:
            raise self._malformed

    async def _take(self, group: TaskGroup) -> None:
        while True:
            await self._wait_for_room()
            message = await self._context.read()
            if message is grpc.aio.EOF:
                return
            try:
                appends = decode_appends(message)
            except (DecodeError, ValueError, ValidationError) as error:
                # Raised once the appends before it are answered.
                self._malformed = malformed_fault(f"append stream: {error}")
                return
            batch = _Batch(appends)
            self._content.take(batch.size)
            self.held += batch.size
            appends.reverse()
            del message
            while appends:
                # The list gives up its reference here, so that the memory of finished appends is
                # free.
                whole = appends.pop()
                self._under_way += 1
                self._under_way_bytes += whole.size
                self._awaited.update(whole.append.after)
                journal = whole.append.parameters.journal
                group.start_soon(self._serve(whole, batch), name=f"append:{journal}")
                await self._wait_until_under_way(UNDER_WAY_MAX, UNDER_WAY_BYTES_MAX)

    async def _wait_for_room(self) -> None:
        """Wait while all streams hold more than they may; waiting appends and stalled streams are refused first."""
        loop = asyncio.get_running_loop()
        while self._content.is_over:
            self._content.refused += self._appends.refuse_waiting()
            missing = self._content.in_use - self._content.bound
            for stream in stalled(self._streams, missing, loop.time() - STALLED_SECONDS):
                self._content.refused += 1
                stream.cut_off()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STALLED_SECONDS):
                    await self._content.fell.wait()

    async def _wait_until_under_way(self, count: int, bytes_: int = 0) -> None:
        while self._under_way > count or self._under_way_bytes > bytes_:
            self._ended.clear()
            await self._ended.wait()

    async def _serve(self, whole: WholeAppend, batch: _Batch) -> None:
        answer = await self._answer_of(whole)
        if batch.is_last():
            self.held -= batch.size
            self._content.give_back(batch.size)
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
            self.silent_since = asyncio.get_running_loop().time()
            await self._context.write(AppendStreamResponse(answers=[each for each, _ in answers]))
            self.silent_since = None
            self._under_way -= len(answers)
            self._under_way_bytes -= sum(size for _, size in answers)
            self._ended.set()

    async def _answer_of(self, whole: WholeAppend) -> AppendStreamResponse.Answer:
        number = whole.append.number
        try:
            response = await self._appends.append_whole(whole, self._context)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The journal's committer was cancelled, not this task: the broker stops.
            fault = RpcFault(
                grpc.StatusCode.UNAVAILABLE, "the append was cancelled: the broker is stopping"
            )
        except Exception as error:
            fault = fault_of(error) or _unforeseen(error)
        else:
            return AppendStreamResponse.Answer(number=number, append=response)
        return AppendStreamResponse.Answer(
            number=number, code=fault.code.value[0], detail=fault.text
        )


def _unforeseen(error: Exception) -> RpcFault:
    _log.error("append.unexpected_error", exc_info=error)
    return RpcFault(grpc.StatusCode.UNKNOWN, f"unexpected {type(error).__name__}: {error}")
