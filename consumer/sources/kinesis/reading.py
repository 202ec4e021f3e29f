"""One reading of a part of a stream: its shards concurrently, children after their parents.

    settle
    follow ──► a task for each shard that may be read ──► queue ──► batches()
       ▲                     │
       └── a shard ended ────┘

Tasks never fail: errors travel through the queue and are raised where the batches are consumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

import structlog
from msgspec import structs

from broadsheet.consumer.errors import (
    SourceError,
    SourceRecreatedError,
    SourceUnavailableError,
)
from broadsheet.consumer.sources.kinesis.calls import NotAllowedError, ThrottledError
from broadsheet.consumer.sources.kinesis.fan_out import KinesisStream
from broadsheet.consumer.sources.kinesis.lineage import (
    Elsewhere,
    ReadableParts,
    StreamShard,
    outlook,
    slice_of,
)
from broadsheet.consumer.sources.kinesis.pages import OUTAGE_ATTEMPTS_MAX
from broadsheet.consumer.sources.kinesis.places import (
    Resume,
    Start,
    StreamEntry,
    TrimHorizon,
    beginning_of,
    decode_resume,
    decode_stream_entry,
    time_of,
)
from broadsheet.consumer.sources.kinesis.shard_batches import ShardBatches
from broadsheet.consumer.sources.part import AtTimestamp, Latest, Part
from broadsheet.journals.message.batch import MessageBatch, MessageType
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import Checkpoint

DISCOVERY_SECONDS = 30.0
"""Time between listings of the stream's shards, which find those whose parents other parts read."""
AWAITING_SECONDS = 1.0
"""Time between requests to other parts for the ends that shards of this part wait for."""
_BATCHES_AHEAD = 2

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisReadingSettings:
    """Settings that all readings of a stream share."""

    start: Start
    message_type: MessageType
    read_recreated: bool = False
    clock: Clock = field(default_factory=SystemClock)
    elsewhere: Elsewhere | None = None
    discovery_seconds: float = DISCOVERY_SECONDS
    awaiting_seconds: float = AWAITING_SECONDS


@dataclass(frozen=True, slots=True)
class _Note:
    """A note for the checkpoint; it follows earlier batches in the queue, and is committed by itself."""

    name: str
    content: bytes


def stream_name(stream: str) -> str:
    """Return the name of a stream's entry in checkpoints."""
    return f"kinesis/{stream}"


class StreamReading:
    """Reads one part of a stream from a checkpoint on."""

    def __init__(
        self,
        part: Part,
        checkpoint: Checkpoint,
        *,
        stream: KinesisStream,
        settings: KinesisReadingSettings,
    ) -> None:
        """Create the reading.

        Args:
            part: What to read.
            checkpoint: Where to go on.
            stream: The stream.
            settings: Of the source.
        """
        self._part = part
        self._checkpoint = checkpoint
        self._calls = stream.calls
        self._reader = stream.reader
        self._settings = settings
        self._start = settings.start
        self._resumes: dict[str, Resume] = {}
        """Entries of shards, by name."""
        self.ends: dict[str, int] = {}
        """Offsets behind the last record of shards of ours that were read to their ends, by name, bytes."""
        self._finished: set[str] = set()
        self._started: set[str] = set()
        self._queue: asyncio.Queue[MessageBatch | _Note | Exception] = asyncio.Queue(_BATCHES_AHEAD)
        self._changed = asyncio.Event()

    async def settle(self) -> Mapping[str, bytes]:
        """Settle where shards begin that the checkpoint does not know; return what it must know of that.

        Raises:
            SourceRecreatedError: the stream is not the one that the checkpoint is of.
            SourceError: it cannot be looked at.
        """
        now_ms = int(self._settings.clock.wall_seconds() * 1000)
        name = stream_name(self._calls.stream)
        known = self._known_entry(name)
        self._resumes = {
            each: decode_resume(each, source.resume)
            for each, source in self._checkpoint.sources.items()
            if each.startswith(name + "/") and source.resume
        }
        found = await self._described(known)
        entry, notes = known or StreamEntry(), dict[str, bytes]()
        if found is not None and found.identity != entry.identity:
            if entry.identity:
                self._begin_again(known=entry.identity, found=found.identity)
                notes = {each: resume.encode() for each, resume in self._resumes.items()}
                found = structs.replace(found, again=True)
            # A checkpoint without an identity, as earlier releases wrote it, is taken to be of the present stream.
            entry = structs.replace(
                entry, arn=found.arn, created_ms=found.created_ms, again=found.again
            )
        entry = self._settled_start(entry, now_ms)
        if entry != known:
            notes[name] = entry.encode()
        return notes

    def _known_entry(self, name: str) -> StreamEntry | None:
        source = self._checkpoint.sources.get(name)
        return None if source is None else decode_stream_entry(name, source.resume)

    async def _described(self, known: StreamEntry | None) -> StreamEntry | None:
        """Return what identifies the stream; None if that is not allowed, and the checkpoint does not require it."""
        backoff = Backoff(initial_seconds=0.5)
        while True:
            try:
                return await self._calls.described()
            except NotAllowedError as error:
                if known is not None and known.identity:
                    raise
                _log.warning(
                    "kinesis.stream_not_described",
                    stream=self._calls.stream,
                    action="allow kinesis:DescribeStreamSummary, so that a stream created again is noticed",
                    reason=str(error),
                )
                return None
            except SourceUnavailableError as error:
                await self._pause_or_raise(error, backoff)

    def _begin_again(self, *, known: str, found: str) -> None:
        name = stream_name(self._calls.stream)
        if not self._settings.read_recreated:
            raise SourceRecreatedError(name, known=known, found=found)
        _log.warning(
            "kinesis.stream_recreated", stream=self._calls.stream, known=known, found=found
        )
        # Offsets go on where those of the old stream end.
        self._resumes = dict.fromkeys(self._resumes, Resume())

    def _settled_start(self, entry: StreamEntry, now_ms: int) -> StreamEntry:
        """Set the start of shards without an entry; return the stream's entry with what was decided.

        The latest records are those that arrive after the application's first start, not after each restart, so the
        time of that start goes into the checkpoint.
        """
        if entry.again:
            self._start = TrimHorizon()
            return entry
        if not isinstance(self._settings.start, Latest):
            return entry
        started_ms = now_ms if entry.started_ms is None else entry.started_ms
        self._start = AtTimestamp(time_of(started_ms))
        return structs.replace(entry, started_ms=started_ms)

    async def batches(self) -> AsyncGenerator[MessageBatch, None]:
        """Yield the batches of all shards of the part, without end; the reading must be settled."""
        async with TaskGroup() as group:
            try:
                group.start_soon(self._passing_errors(self._follow(group)), name="follow shards")
                while True:
                    item = await self._queue.get()
                    if isinstance(item, Exception):
                        raise item
                    if isinstance(item, _Note):
                        yield MessageBatch.note(
                            item.name, self._settings.message_type, {item.name: item.content}
                        )
                    else:
                        yield item
            finally:
                group.stop()

    async def _follow(self, group: TaskGroup) -> None:
        """Start reading shards as they become readable."""
        while True:
            self._changed.clear()
            shards = await self._listed()
            seen = self._outlook(shards)
            while self._skip_finished(seen):
                seen = self._outlook(shards)
            for shard in seen.readable:
                if shard.id not in self._started:
                    self._started.add(shard.id)
                    group.start_soon(
                        self._passing_errors(self._read(shard)), name=f"read {shard.id}"
                    )
            await self._ask_elsewhere(seen.awaited)
            settings = self._settings
            pause = settings.awaiting_seconds if seen.awaited else settings.discovery_seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _listed(self) -> dict[str, StreamShard]:
        backoff = Backoff(initial_seconds=0.5)
        while True:
            try:
                return await self._calls.list_shards()
            except SourceUnavailableError as error:
                await self._pause_or_raise(error, backoff)

    async def _pause_or_raise(self, error: SourceUnavailableError, backoff: Backoff) -> None:
        if backoff.attempt >= OUTAGE_ATTEMPTS_MAX and not isinstance(error, ThrottledError):
            raise error
        _log.info("kinesis.request_retried", stream=self._calls.stream, reason=str(error))
        await backoff.sleep()

    def _outlook(self, shards: Mapping[str, StreamShard]) -> ReadableParts:
        return outlook(shards, self._part, finished=self._finished)

    def _skip_finished(self, seen: ReadableParts) -> bool:
        """Mark shards whose end is in a checkpoint as finished; return whether there was any."""
        found = False
        for shard in seen.readable:
            resume = self._resumes.get(self.name_of(shard))
            if resume is not None and resume.ended and shard.id not in self._finished:
                self._note_end(shard, resume)
                found = True
        return found

    async def _ask_elsewhere(self, awaited: tuple[StreamShard, ...]) -> None:
        for shard in awaited:
            elsewhere = self._settings.elsewhere
            if elsewhere is None:
                raise SourceError(
                    self._calls.stream,
                    f"{shard.id} is read by another shard of ours: give `elsewhere`, so that its end is known",
                )
            index = slice_of(shard, self._part.count)
            if await elsewhere.has_ended(self.name_of(shard), index):
                _log.info("kinesis.parent_ended", shard=shard.id, part=index)
                self._finished.add(shard.id)
                self._changed.set()

    async def _read(self, shard: StreamShard) -> None:
        """Put a shard's batches into the queue until it ends."""
        name = self.name_of(shard)
        resume, read_through = self._resumes.get(name), self._read_through(name)
        beginning = beginning_of(name, resume, read_through, self._start)
        reading = ShardBatches(
            name,
            shard,
            beginning,
            reader=self._reader,
            message_type=self._settings.message_type,
        )
        _log.info("kinesis.shard_started", shard=shard.id, place=str(beginning.place))
        last = resume or Resume()
        async with aclosing(reading.batches()) as batches:
            async for batch in batches:
                last = decode_resume(name, batch.resumes[name])
                await self._queue.put(batch)
        _log.info("kinesis.shard_ended", shard=shard.id, offset=reading.offset)
        ended = Resume(last.begin, reading.offset, last.first, last.last, ended=True)
        await self._queue.put(_Note(name, ended.encode()))
        self._note_end(shard, ended)

    def _note_end(self, shard: StreamShard, resume: Resume) -> None:
        self.ends[self.name_of(shard)] = resume.end
        self._finished.add(shard.id)
        self._changed.set()

    async def _passing_errors(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:  # Errors of any kind, because `batches` must raise each.
            await self._queue.put(error)

    def name_of(self, shard: StreamShard) -> str:
        """Return the name of a shard's messages."""
        return f"{stream_name(self._calls.stream)}/{shard.id}"

    def _read_through(self, name: str) -> int:
        known = name in self._checkpoint.sources
        return self._checkpoint.sources[name].read_through if known else 0
