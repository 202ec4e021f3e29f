"""The decisions of a playback: from the bytes of a log to file changes, and the position to read next.

Pure: spans in, changes of files out.

Source: gazette/core consumer/recoverylog/player.go (what is skipped, and what is loss of data). That a gap in the
sequence after missing bytes is data loss, whatever the hints say, is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from copy import copy
from dataclasses import dataclass
from typing import Final

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.foreign_bytes import completion_bytes
from broadsheet.consumer.recoverylog.forks import CHECKSUM_MASK, Fork, ForkDetector
from broadsheet.consumer.recoverylog.fsm import FilePlacement, FileStateMachine, OperationOutcome
from broadsheet.consumer.recoverylog.operation import (
    DecodedOp,
    Desync,
    OperationDecoder,
    WrittenBytes,
    framed,
)
from broadsheet.consumer.recoverylog.segments import Segment
from broadsheet.wire.recorded_op_pb2 import FSMHints, RecordedOp

JUMP_BYTES: Final = 1 << 20
"""Number of dead bytes up to which reading them is cheaper than a new request for the bytes after them."""


# Changes of a player's files, as data. A file is named by its fnode, because its paths may change until the end.
@dataclass(frozen=True, slots=True)
class CreateFile:
    """A new, empty file."""

    fnode: int


@dataclass(slots=True)
class WriteFile:
    """Bytes of a file, from `offset` on. Not frozen, because that would double the cost of creating one."""

    fnode: int
    offset: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """The removal of a file that has no path any more."""

    fnode: int


FileChange = CreateFile | WriteFile | RemoveFile


@dataclass(frozen=True, slots=True)
class PlaybackPosition:
    """The position of a byte in a log."""

    log: str
    offset: int


_APPLIED = OperationOutcome.APPLIED


class Playback:
    """The state of one playback."""

    def __init__(
        self,
        hints: FSMHints,
        passed_over: Mapping[int, int] | None = None,
        decided_forks: Set[tuple[int, int]] = frozenset(),
    ) -> None:
        """Begin at the start of the hints.

        Args:
            hints: What to play.
            passed_over: Authors whose operations are no part of the log's history, each with the sequence number from
                which on that is so.
            decided_forks: Forks that change nothing, because the branch that playback follows is the log's history and
                its losers are of that branch, too; each by `Fork.passed` and `Fork.seq_no`.

        Raises:
            HintsError: the hints contradict themselves.
        """
        self.fsm = FileStateMachine(hints)
        self._log = hints.log
        self._passed_over = passed_over or {}
        self._forks = ForkDetector(decided_forks)
        self._checksums = self._forks.checksums
        self._author = 0
        self._target_fnode = 0
        """The file to which the next raw bytes belong."""
        self._target_offset = 0
        self._target_bytes = 0
        """Number of these bytes still to come; 0 if the next raw bytes belong to no file."""
        self.handed_over = False
        """Whether the operation of the new author applied, so that everything is recovered."""
        self.mark = ""
        """Path of a property; the operation that sets it is the last that is played. Empty: none is."""
        self.marked = False
        """Whether that operation applied."""
        self.strayed = 0
        """Number of operations, since the newest one that took its number, that follow from another history: their
        recorder knew of operations that we do not have."""
        self.ignored: Counter[OperationOutcome] = Counter()
        """Number of operations that should have applied and did not, by reason."""
        self.skipped_bytes = 0
        """Number of bytes that belong to no operation."""
        self.first_skipped = -1
        """Offset of the first of them, bytes; -1: there are none."""
        self._at = self._hinted() or PlaybackPosition(hints.log, 0)
        self._decoder = OperationDecoder(self._at.offset)
        self._fed_to = self._at.offset
        self._entered: Segment | None = None
        """The hinted segment that reading has reached."""
        self._place = FilePlacement(self._at.log, 0, 0)
        self._hole: tuple[int, int] | None = None
        """Missing bytes [begin, end) after which no operation in sequence has followed yet."""

    @property
    def position(self) -> PlaybackPosition:
        """The position up to which the log is read."""
        return PlaybackPosition(self._at.log, self._fed_to)

    @property
    def whole_to(self) -> int:
        """Offset up to which everything read is complete, bytes: an incomplete operation may begin here."""
        return self._decoder.whole_to

    @property
    def seek(self) -> PlaybackPosition | None:
        """The position to jump to, if the hints say that nothing before it is live; None to read on."""
        hinted = self._hinted()
        # No jump within a write: its remaining raw bytes are live.
        if hinted is None or self._decoder.raw_bytes:
            return None
        ahead = hinted.log != self._at.log or hinted.offset > self._decoder.offset
        return hinted if ahead else None

    @property
    def upcoming(self) -> PlaybackPosition | None:
        """The next jump: the position after the next long range without live bytes; None if there is none."""
        log = self._at.log
        end = max(self._fed_to, self._decoder.offset + self._decoder.raw_bytes)
        for segment in self.fsm.hinted_segments:
            if segment.log != log or segment.first_offset > end + JUMP_BYTES:
                return PlaybackPosition(segment.log, segment.first_offset)
            end = max(segment.last_offset, end)
        return None

    def left_bytes(self, heads: Mapping[str, int]) -> int:
        """Return how many bytes are still to be played: what is live of earlier logs, and then this one up to its head.

        Args:
            heads: Write heads by log.
        """
        at, left, begin = self.position, 0, 0
        if at.log == self._log:
            return max(0, heads[self._log] - at.offset)
        for segment in self.fsm.hinted_segments:
            if segment.log == self._log:
                begin = segment.first_offset
                break
            from_offset = segment.first_offset
            if segment.log == at.log:
                from_offset = max(from_offset, at.offset)
            left += max(0, (segment.last_offset or heads[segment.log]) - from_offset)
        return left + max(0, heads[self._log] - begin)

    @property
    def complete(self) -> bool:
        """True once everything that the hints name has been read."""
        return not self.fsm.hinted_segments

    def go_to(self, position: PlaybackPosition) -> None:
        """Continue at a position; an incomplete operation fed before is dropped."""
        self._at = position
        self._decoder = OperationDecoder(position.offset)
        self._fed_to = position.offset
        self._place.log = position.log
        self._hole = None

    def hand_over_to(self, author: int) -> bytes:
        """Return the framed operation that makes `author` the next recorder; it must come next in the log."""
        self._author = author
        op = RecordedOp(author=author, seq_no=self.fsm.next_seq, checksum=self.fsm.next_checksum)
        return framed(op.SerializeToString())

    @property
    def fork(self) -> Fork | None:
        """The first fork that was found; None if there is none."""
        return self._forks.fork(self.fsm.next_seq)

    @property
    def completion(self) -> int:
        """Number of zeros behind which the next operation is found: foreign bytes at the log's end began another one.

        0 as well if what they began is an operation that applies, because zeros are not its content.
        """
        return 0 if self._target_bytes else completion_bytes(copy(self._decoder))

    def feed(self, offset: int, content: bytes) -> list[FileChange]:
        """Take bytes of the current log, from `offset` on; return the file changes.

        Raises:
            LogDataLossError: live bytes are missing.
        """
        changes: list[FileChange] = []
        if offset > self._fed_to:
            self._on_hole(offset)
        elif offset < self._fed_to:
            # A part of the span was fed before; only the rest is new.
            content = content[self._fed_to - offset :]
            offset = self._fed_to
        while content and not (self.handed_over or self.marked):
            self._fed_to = offset + len(content)
            for found in self._decoder.feed(content):
                if isinstance(found, DecodedOp):
                    self._on_op(found, changes)
                elif isinstance(found, WrittenBytes):
                    self._on_written(found.content, changes)
                else:
                    self._on_skipped(found)
                if self._must_stop():
                    break
            target = self.seek
            if target is None or target.log != self._at.log or target.offset >= self._fed_to:
                break
            content = content[target.offset - offset :]
            offset = target.offset
            self.go_to(target)
        return changes

    def _must_stop(self) -> bool:
        """Tell whether the playback is done, or continues elsewhere; called often, so it caches the current segment."""
        if self.handed_over or self.marked:
            return True
        segments = self.fsm.hinted_segments
        if not segments or segments[0] is self._entered or self._decoder.raw_bytes:
            return False
        if self.seek is not None:
            return True
        self._entered = segments[0]
        return False

    def _hinted(self) -> PlaybackPosition | None:
        if not self.fsm.hinted_segments:
            return None
        segment = self.fsm.hinted_segments[0]
        return PlaybackPosition(segment.log, segment.first_offset)

    def _on_hole(self, offset: int) -> None:
        """Handle bytes up to `offset` that are missing from the log: pruned, or lost."""
        segment = self.fsm.hinted_segments[0] if self.fsm.hinted_segments else None
        # A segment that ends within the hole lost live bytes. One with an unknown end may lie after the hole.
        live = segment is not None and segment.last_offset and offset >= segment.last_offset
        hole = self._fed_to, offset
        if live or self._target_bytes:
            raise self._loss(hole, f"of which some are live ({segment or 'content of a file'})")
        self.go_to(PlaybackPosition(self._at.log, offset))
        self._hole = hole

    def _loss(self, hole: tuple[int, int], detail: str) -> LogDataLossError:
        begin, end = hole
        return LogDataLossError(
            self._at.log,
            f"bytes {begin} to {end} are gone, {detail}; recover from a backup of the hints "
            "(shardctl shards rewind)",
        )

    def _on_skipped(self, found: Desync) -> None:
        self.first_skipped = found.begin if self.first_skipped < 0 else self.first_skipped
        self.skipped_bytes += found.end - found.begin

    def _on_op(self, found: DecodedOp, changes: list[FileChange]) -> None:
        op = found.op
        if self._passed_over and op.seq_no >= self._passed_over.get(op.author, op.seq_no + 1):
            return
        fsm, place = self.fsm, self._place
        place.first_offset, place.last_offset = found.begin, found.end
        # Those of the operation, if it applies; a message's own fields take three times as long to read.
        seq_no, checksum = fsm.next_seq, fsm.next_checksum
        verdict = fsm.apply(op, found.payload, place)
        if verdict is not _APPLIED:
            self._on_not_applied(op, verdict)
            return
        self._hole = None
        self.strayed = 0
        self._checksums[seq_no & CHECKSUM_MASK] = checksum
        if op.author != self._forks.author:
            self._forks.on_turn(op, found.begin)
        if found.raw_bytes:
            write, content = op.write, found.content
            size, fnode, offset = len(content), write.fnode, write.offset
            if size:
                changes.append(WriteFile(fnode, offset, content))
            self._target_fnode, self._target_offset = fnode, offset + size
            self._target_bytes = found.raw_bytes - size
        elif op.HasField("write"):
            return  # A write of no bytes changes no file.
        elif op.HasField("create"):
            changes.append(CreateFile(op.seq_no))
        elif op.HasField("unlink"):
            if op.unlink.fnode not in self.fsm.fnodes:
                changes.append(RemoveFile(op.unlink.fnode))
        elif op.HasField("property"):
            self.marked = bool(self.mark) and op.property.path == self.mark
        elif not op.HasField("link"):
            self._on_turn_only(op)

    def _on_turn_only(self, op: RecordedOp) -> None:
        """Take an operation that changes nothing; the hand-over is one, and the first of its author."""
        self._forks.on_turn_only(op.seq_no)
        if self._author:
            self.handed_over = op.author == self._author

    def _on_written(self, content: memoryview, changes: list[FileChange]) -> None:
        size = len(content)
        # Raw bytes of a write that did not apply belong to no file.
        if self._target_bytes and size:
            changes.append(WriteFile(self._target_fnode, self._target_offset, content))
            self._target_offset += size
            self._target_bytes -= size

    def _on_not_applied(self, op: RecordedOp, verdict: OperationOutcome) -> None:
        if verdict.stepped:
            self._hole = None
            self.strayed = 0
            self._checksums[op.seq_no & CHECKSUM_MASK] = op.checksum
            if op.author != self._forks.author:
                self._forks.on_turn(op, self._place.first_offset)
        elif verdict is OperationOutcome.STALE:
            self._forks.on_stale(op, self._place.first_offset, self.fsm.next_seq)
        elif verdict is OperationOutcome.SEQUENCE_SKIPPED and self._hole is not None:
            # Operations are missing right after missing bytes, so the missing bytes held them.
            raise self._loss(
                self._hole, f"and with them operations {self.fsm.next_seq} to {op.seq_no - 1}"
            )
        if not verdict.expected:
            self._forks.on_strayed(op)
            self.ignored[verdict] += 1
            self.strayed += 1


WINDOW_SECONDS: Final = 0.2
"""Time over which a rate is measured, because bytes arrive in bursts."""
_WEIGHT: Final = 0.3
"""Weight of the newest rate in the smoothed rate."""


@dataclass(frozen=True, slots=True)
class PlayingTime:
    """The begin and end of a step of playing, monotonic seconds."""

    began: float
    ended: float


@dataclass(slots=True)
class PlaybackProgress:
    """The progress of one playback: its distance behind the log, and the time to catch up; read by reporters."""

    offset: int = 0
    """Offset up to which it has played, bytes."""
    behind_bytes: int = 0
    """Bytes still to play, of all logs."""
    played_bytes: int = 0
    """Number of bytes read and played so far."""
    bytes_per_second: float = 0.0
    """Smoothed rate of playing, without idle time."""
    tailing: bool = False
    """Whether it has reached the head."""
    _window_began: float | None = None
    _window_bytes: int = 0

    @property
    def behind_seconds(self) -> float | None:
        """Time to play them at the rate so far, seconds; None if no rate is known yet."""
        if not self.behind_bytes:
            return 0.0
        return self.behind_bytes / self.bytes_per_second if self.bytes_per_second else None

    def on_idle(self) -> None:
        """Record that everything is played, because the wait for new writes must not count as playing time."""
        self._window_began = None

    def on_played(
        self, offset: int, behind_bytes: int, *, played_bytes: int, time: PlayingTime
    ) -> None:
        """Record that `played_bytes` more are played."""
        self.offset, self.behind_bytes = offset, behind_bytes
        self.played_bytes += played_bytes
        if self._window_began is None:
            self._window_began, self._window_bytes = time.began, 0
        self._window_bytes += played_bytes
        seconds = time.ended - self._window_began
        # The first rate does not wait for a whole window, so that a report has one soon.
        if seconds >= WINDOW_SECONDS or (seconds > 0 and not self.bytes_per_second):
            rate = self._window_bytes / seconds
            smoothed = self.bytes_per_second or rate
            self.bytes_per_second = smoothed + _WEIGHT * (rate - smoothed)
            self._window_began, self._window_bytes = time.ended, 0
