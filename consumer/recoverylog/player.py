"""Plays a recovery log into a directory: as far as it goes, and on, until it is handed over.

    BACKFILL ──► at the write head ──► tailing (a hot standby) ──► hand-over asked for
                                                                     │  an operation of the new author, which also
                                                                     ▼  takes the fence; read up to it
                                                                   recovered: files at their paths

The operation that hands the log over takes the next sequence number. Whatever the old recorder wrote before is part of
what is recovered; whatever it writes after bears a wrong number, and is refused by the broker besides. If another
operation came first, as is likely where the old recorder is busy, ours does not apply. It took the fence all the same,
so nothing follows what came first: the log is recovered once all before ours is read. Only if its answer did not tell
that the fence was ours is it tried again from where the log is then.

An operation whose answer was lost may arrive at any later time, and take the fence with it. So it is repeated under
another author: were it ours, it would give the log back to us when others have long recorded in it.

The event loop reads ahead; what has arrived is decoded and written on a thread.

Source: gazette/core consumer/recoverylog/player.go (states, checks, hand-over). Reading ahead and the thread are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from broadsheet.allocator.runtime.backoff import Backoff
from broadsheet.allocator.runtime.clock import Clock, SystemClock
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.consumer.errors import (
    AppendOutcomeUnknownError,
    ConsumerError,
    EndpointError,
    JournalUnavailableError,
    LogDataLossError,
    RecoveryLogError,
)
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.journal.reader import ReadSpan
from broadsheet.consumer.protocol.recorded_op_pb2 import FSMHints
from broadsheet.consumer.recoverylog.fsm import FileStateMachine, author_from, fence_of, holds_fence
from broadsheet.consumer.recoverylog.log_feed import LINGER_SECONDS, LogFeeds
from broadsheet.consumer.recoverylog.playback import Playback, PlaybackProgress, PlayingTime
from broadsheet.consumer.recoverylog.standby_files import CopyOrders, PlayedFiles, PlayThread

STEP_BYTES: Final = 4 << 20
"""Played at once, about: who waits for the player waits for so many bytes, of tiny operations a quarter of a second."""
INJECT_BACKOFF_SECONDS_MAX: Final = 1.0
"""Longest pause between attempts to take the log over: it is when nobody serves the shard."""

_LOST_END: Final = (
    "it was deleted and applied again, or has lost its end. Restore the journal, or recover from a backup of the hints "
    "(shardctl shards rewind)"
)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a playback ended with."""

    fsm: FileStateMachine
    directory: Path
    """Holds the files, at their paths."""
    log: str
    """Where the operations end."""
    head: int
    """Offset after the last of them, bytes."""
    author: int
    """Who the log was handed over to; 0: nobody."""


class Player:
    """Plays once. `run` it; ask for its end with `hand_over` or `stop_at_head`."""

    def __init__(
        self,
        journals: JournalClient,
        hints: FSMHints,
        directory: Path,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Take what to play and where to, on the event loop.

        Args:
            journals: Reads the log, and appends to it what hands it over.
            hints: What to read.
            directory: Absolute; emptied first, and removed if playback fails.
            clock: Times the rate of playing.

        Raises:
            HintsError: the hints contradict themselves.
        """
        self._journals = journals
        self._log = hints.log
        self._directory = directory
        self._clock = clock or SystemClock()
        self._playback = Playback(hints)
        self._hinted = list(self._playback.fsm.hinted_segments)
        self._files = PlayedFiles(directory, hints.log)
        self._heads: dict[str, int] = {}
        self._author = 0
        self._injected_at = -1
        """Where our newest operation stands that is to hand the log over."""
        self._fenced = False
        """Whether that operation took the fence."""
        self._ending = False
        self._finished = False
        self._wake = asyncio.Event()
        self._copies = CopyOrders(self._files, on_order=self._wake.set)
        self.tailing = asyncio.Event()
        """Set once it has played all there was when it began."""
        self.progress = PlaybackProgress()

    def hand_over(self, author: int) -> None:
        """Have the log handed over to `author`, or to one that `Recovered` names, at its end; `run` then returns."""
        self._author = author
        self.stop_at_head()

    def stop_at_head(self) -> None:
        """Have `run` return at the log's end, without a trace in it."""
        self._ending = True
        self._copies.refuse()
        self._wake.set()

    async def copy_to(self, target: Path) -> bool:
        """Copy the files as of the log's end, or a little later, to their paths below `target`.

        Waits until all is played that was appended before this was called. False if the player ends first.

        Args:
            target: A directory that does not exist yet. What is left in it by a failure is the caller's to remove.

        Raises:
            ConsumerError: no broker tells where the log ends.
            OSError: as of the disk.
        """
        if self._ending or not self.tailing.is_set():
            return False
        return await self._copies.order(target, through=await self._write_head(self._log))

    async def run(self) -> Recovered:
        """Play until asked to end.

        Raises:
            LogDataLossError: the log lacks what the hints say.
            RecoveryLogError: played files make no sense.
            ConsumerError: the log cannot be read or appended to.
            OSError: as of the disk.
        """
        thread = PlayThread()
        live = False
        try:
            await thread.run(self._files.prepare)
            await self._find_heads()
            async with TaskGroup() as group:
                await self._play(group, thread)
                group.stop()
            await thread.run(lambda: self._files.make_live(self._playback.fsm))
            live = True
        finally:
            self._copies.refuse()
            await thread.end(self._files.close if live else self._files.discard)
        self._report()
        log, end = self._playback.position.log, self._playback.whole_to
        return Recovered(self._playback.fsm, self._directory, log, end, self._author)

    # -- reading

    async def _play(self, group: TaskGroup, thread: PlayThread) -> None:
        feeds = LogFeeds(
            self._journals,
            self._playback.position,
            group,
            self._wake.set,
            linger_seconds=0.0 if self._ending else LINGER_SECONDS,
        )
        while not self._is_finished():
            if self._ending:
                feeds.hurry(self._playback.position)
            if self._at_head():
                await self._on_head()
                if self._is_finished():
                    break
            self._wake.clear()
            if self._playback.position.log == self._log:
                await self._copies.make(
                    thread, self._playback.fsm, played_to=self._playback.position.offset
                )
            spans = self._take(feeds)
            if not spans:
                if not self.progress.behind_bytes:
                    self.progress.on_idle()
                await self._wait()
                continue
            began = self._clock.monotonic_seconds()
            await thread.run(partial(self._play_spans, spans))
            self._go_on(feeds)
            self.progress.on_played(
                self._playback.position.offset,
                max(self._head(), feeds.current.write_head),
                played_bytes=sum(len(span.content) for span in spans),
                time=PlayingTime(began, self._clock.monotonic_seconds()),
            )
        feeds.close()

    def _take(self, feeds: LogFeeds) -> list[ReadSpan]:
        """Return what has arrived, as far as it is worth a step."""
        spans: list[ReadSpan] = []
        taken_to, taken_bytes = self._playback.position.offset, 0
        try:
            while taken_bytes < STEP_BYTES and (span := feeds.take(taken_to)) is not None:
                spans.append(span)
                taken_to, taken_bytes = span.end, taken_bytes + len(span.content)
        except ConsumerError:
            if not spans:
                raise  # Else the next call does: what was read may be all that is needed.
        return spans

    def _play_spans(self, spans: Sequence[ReadSpan]) -> None:
        """Decode and write; on the thread. What comes behind a hand-over, or a jump elsewhere, is dead."""
        log = self._playback.position.log
        for span in spans:
            self._play_span(span)
            self._finished = self._playback.handed_over
            seek = self._playback.seek
            if self._finished or (seek is not None and seek.log != log):
                break

    def _play_span(self, span: ReadSpan) -> None:
        seek = self._playback.seek
        if seek is not None:
            if span.end <= seek.offset:
                return  # Nothing in it is live.
            self._playback.go_to(seek)
        self._files.apply(self._playback.feed(span.offset, span.content))

    def _go_on(self, feeds: LogFeeds) -> None:
        """Read where the player is to go on, and prepare where it will go then."""
        seek = self._playback.seek
        if seek is not None and not feeds.current.reaches(seek):
            feeds.jump(seek)
            self._playback.go_to(seek)
        feeds.prepare(self._playback.upcoming)

    async def _wait(self) -> None:
        """Wait for more to read, or to be asked to end, if that is not so already."""
        if not (self._ending and self._at_head()):
            await self._wake.wait()

    def _is_finished(self) -> bool:
        # A method, for type checkers believe that what they just compared stays.
        return self._finished

    # -- at the head

    def _head(self) -> int:
        return self._heads[self._playback.position.log]

    def _at_head(self) -> bool:
        """Tell whether all is played that we know of."""
        position = self._playback.position
        if position.offset < self._head():
            return False
        if not self._playback.complete:
            raise LogDataLossError(
                position.log,
                f"it ends at {position.offset}, before {self._playback.fsm.hinted_segments[0]} of the hints: "
                f"{_LOST_END}",
            )
        return True

    async def _on_head(self) -> None:
        if not self.tailing.is_set():
            self.progress.tailing = True
            self.tailing.set()
        if not self._ending:
            return
        if self._author:
            self._check_followed()
            self._check_heard()
            if self._fenced:
                self._finished = True
            else:
                self._heads[self._log] = await self._inject()
            return
        head = await self._write_head(self._log)
        self._finished = head <= self._playback.position.offset
        self._heads[self._log] = max(head, self._head())

    def _check_followed(self) -> None:
        """Check that the log does not go on with operations that we could not follow: a hand-over would undo them."""
        strayed = self._playback.strayed
        if strayed:
            raise LogDataLossError(
                self._log,
                f"its last {strayed} operations follow from others than those played so far "
                f"({dict(self._playback.ignored)}); taking it over would lose them. Look who else records there, and "
                "recover from a backup of the hints (shardctl shards rewind)",
            )

    def _check_heard(self) -> None:
        """Check that what we appended is read as an operation, though perhaps not as the next one."""
        whole_to = self._playback.whole_to
        if whole_to <= self._injected_at:
            raise RecoveryLogError(
                self._log,
                f"what stands at {whole_to} has no end, and takes our operation at {self._injected_at} for a part "
                "of it: no recorder writes that, so find out who else appends to this journal",
            )

    async def _inject(self) -> int:
        """Append what hands the log over; return where it ends, bytes. For as long as it takes: all is played."""
        backoff = Backoff(max_seconds=INJECT_BACKOFF_SECONDS_MAX)
        while True:
            try:
                response = await self._journals.append(
                    self._log,
                    self._playback.hand_over_to(self._author),
                    union_registers=fence_of(self._author),
                )
            except AppendOutcomeUnknownError:
                # It may stand there, and then it applies; the next one's number is stale, and it is tried once more.
                self._author = author_from(self._author)
                await backoff.sleep()
                continue
            except (EndpointError, JournalUnavailableError) as error:
                _log.warning("recovery_log.hand_over_waits", log=self._log, error=str(error))
                await backoff.sleep()
                continue
            played_to = self._playback.position.offset
            if response.commit.begin < played_to:
                # What we have played is not there any more: what follows ours would follow from nothing.
                raise LogDataLossError(
                    self._log,
                    f"the operation that hands it over landed at {response.commit.begin}, and it was played up to "
                    f"{played_to}: {_LOST_END}",
                )
            self._injected_at = response.commit.begin
            self._fenced = holds_fence(response.registers, self._author)
            return response.commit.end

    async def _write_head(self, log: str) -> int:
        """Return a log's write head behind all appends that were under way, bytes."""
        response = await self._journals.append(log, b"")
        return response.commit.end

    async def _find_heads(self) -> None:
        for log in {self._log, *(segment.log for segment in self._hinted)}:
            self._heads[log] = await self._write_head(log)
        for segment in self._hinted:
            head = self._heads[segment.log]
            if segment.first_offset >= head or segment.last_offset > head:
                raise LogDataLossError(
                    segment.log,
                    f"it ends at {head}, and its hints have {segment}: {_LOST_END}",
                )
        self.progress.head = self._heads[self._log]

    def _report(self) -> None:
        playback = self._playback
        if playback.ignored or playback.skipped_bytes:
            _log.warning(
                "recovery_log.odd",
                log=self._log,
                skipped_bytes=playback.skipped_bytes,
                ignored={verdict.name: count for verdict, count in playback.ignored.items()},
            )
