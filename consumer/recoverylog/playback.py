"""What a player does with the bytes of a log, without doing it: which files change, and where to read next.

Pure: spans in, changes of files out.

Source: gazette/core consumer/recoverylog/player.go (what is skipped, and what is loss of data). That a gap in sequence
behind bytes that are gone is loss, whatever the hints say, is ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.protocol.recorded_op_pb2 import FSMHints, RecordedOp
from broadsheet.consumer.recoverylog.fsm import FilePlacement, FileStateMachine, OperationOutcome
from broadsheet.consumer.recoverylog.operation import (
    DecodedOp,
    Desync,
    OperationDecoder,
    WrittenBytes,
    framed,
)
from broadsheet.consumer.recoverylog.segments import Segment

JUMP_BYTES: Final = 1 << 20
"""Dead bytes up to which reading them costs less than asking for what is behind them."""


# Changes of a player's files, as data. A file is named by its fnode: its paths may change until the
# end.
@dataclass(frozen=True, slots=True)
class CreateFile:
    """A new, empty file."""

    fnode: int


@dataclass(slots=True)
class WriteFile:
    """Bytes of a file, from `offset` on. Not frozen, which would make it twice as dear to make."""

    fnode: int
    offset: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """A file has no path any more."""

    fnode: int


FileChange = CreateFile | WriteFile | RemoveFile


@dataclass(frozen=True, slots=True)
class PlaybackPosition:
    """A byte of a log."""

    log: str
    offset: int


_APPLIED = OperationOutcome.APPLIED


class Playback:
    """The state of one playback."""

    def __init__(self, hints: FSMHints) -> None:
        """Begin where the hints say.

        Raises:
            HintsError: they contradict themselves.
        """
        self.fsm = FileStateMachine(hints)
        self._log = hints.log
        self._author = 0
        self._target_fnode = 0
        """The file that the raw bytes go to which come next."""
        self._target_offset = 0
        self._target_bytes = 0
        """How many come yet; 0: they are nobody's."""
        self.handed_over = False
        """Whether the operation of the new author applied: everything is recovered."""
        self.strayed = 0
        """Operations since the newest one that took its number which follow from something else: a recorder wrote them
        that knew of operations which we do not have."""
        self.ignored: Counter[OperationOutcome] = Counter()
        """Operations that did not apply, and should have, by why."""
        self.skipped_bytes = 0
        """Bytes that belong to no operation."""
        self._at = self._hinted() or PlaybackPosition(hints.log, 0)
        self._decoder = OperationDecoder(self._at.log, self._at.offset)
        self._fed_to = self._at.offset
        self._entered: Segment | None = None
        """The hinted segment that reading has come to."""
        self._place = FilePlacement(self._at.log, 0, 0)
        self._hole: tuple[int, int] | None = None
        """Bytes that were gone, since which no operation followed in sequence."""

    @property
    def position(self) -> PlaybackPosition:
        """Up to where the log is read."""
        return PlaybackPosition(self._at.log, self._fed_to)

    @property
    def whole_to(self) -> int:
        """Up to where what is read is whole, bytes: an operation may begin here that has no end yet."""
        return self._decoder.whole_to

    @property
    def seek(self) -> PlaybackPosition | None:
        """Where to read on if not where we are: the hints say that nothing in between is live."""
        hinted = self._hinted()
        if hinted is None or self._decoder.raw_bytes:
            return None
        ahead = hinted.log != self._at.log or hinted.offset > self._decoder.offset
        return hinted if ahead else None

    @property
    def upcoming(self) -> PlaybackPosition | None:
        """Where the hints will have us go once we have read up to where nothing is live for long; None: nowhere."""
        log = self._at.log
        end = max(self._fed_to, self._decoder.offset + self._decoder.raw_bytes)
        for segment in self.fsm.hinted_segments:
            if segment.log != log or segment.first_offset > end + JUMP_BYTES:
                return PlaybackPosition(segment.log, segment.first_offset)
            end = max(segment.last_offset, end)
        return None

    @property
    def complete(self) -> bool:
        """Whether all that the hints name has been read."""
        return not self.fsm.hinted_segments

    def go_to(self, position: PlaybackPosition) -> None:
        """Go on from there; what was fed and is not whole is dropped."""
        self._at = position
        self._decoder = OperationDecoder(position.log, position.offset)
        self._fed_to = position.offset
        self._place.log = position.log
        self._hole = None

    def hand_over_to(self, author: int) -> bytes:
        """Return the operation to append, framed, that makes `author` the next recorder if it comes next."""
        self._author = author
        op = RecordedOp(author=author, seq_no=self.fsm.next_seq, checksum=self.fsm.next_checksum)
        return framed(op.SerializeToString())

    def feed(self, offset: int, content: bytes) -> list[FileChange]:
        """Take bytes of the log we are at, from `offset` on; return what changes.

        Raises:
            LogDataLossError: bytes are missing that are live.
        """
        changes: list[FileChange] = []
        if offset > self._fed_to:
            self._on_hole(offset)
        elif offset < self._fed_to:
            content = content[self._fed_to - offset :]
            offset = self._fed_to
        while content and not self.handed_over:
            self._fed_to = offset + len(content)
            for found in self._decoder.feed(content):
                self._on_found(found, changes)
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
        """Tell whether all is done, or goes on elsewhere. Asked often, it knows the segment that we are in."""
        if self.handed_over:
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
        """The bytes up to `offset` are gone from the log: pruned, or lost."""
        segment = self.fsm.hinted_segments[0] if self.fsm.hinted_segments else None
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

    def _on_found(
        self, found: DecodedOp | WrittenBytes | Desync, changes: list[FileChange]
    ) -> None:
        if isinstance(found, DecodedOp):
            self._on_op(found, changes)
        elif isinstance(found, WrittenBytes):
            self._on_written(found.content, changes)
        else:
            self.skipped_bytes += found.end - found.begin

    def _on_op(self, found: DecodedOp, changes: list[FileChange]) -> None:
        op = found.op
        self._place.first_offset, self._place.last_offset = found.begin, found.end
        verdict = self.fsm.apply(op, found.payload, self._place)
        if verdict is not _APPLIED:
            self._on_not_applied(op, verdict)
            return
        self._hole = None
        self.strayed = 0
        if found.raw_bytes:
            write = op.write
            self._target_fnode, self._target_offset = write.fnode, write.offset
            self._target_bytes = found.raw_bytes
            self._on_written(found.content, changes)
        elif op.HasField("write"):
            return  # Of nothing.
        elif op.HasField("create"):
            changes.append(CreateFile(op.seq_no))
        elif op.HasField("unlink") and op.unlink.fnode not in self.fsm.fnodes:
            changes.append(RemoveFile(op.unlink.fnode))
        elif self._author:
            self.handed_over = op.author == self._author

    def _on_written(self, content: memoryview, changes: list[FileChange]) -> None:
        size = len(content)
        if self._target_bytes and size:
            changes.append(WriteFile(self._target_fnode, self._target_offset, content))
            self._target_offset += size
            self._target_bytes -= size

    def _on_not_applied(self, op: RecordedOp, verdict: OperationOutcome) -> None:
        if verdict.stepped:
            self._hole = None
            self.strayed = 0
        elif verdict is OperationOutcome.SEQUENCE_SKIPPED and self._hole is not None:
            raise self._loss(
                self._hole, f"and with them operations {self.fsm.next_seq} to {op.seq_no - 1}"
            )
        if not verdict.expected:
            self.ignored[verdict] += 1
            self.strayed += 1


# How far a player is behind the log, and for how long yet.

WINDOW_SECONDS: Final = 0.2
"""Time over which a rate is taken: what is read comes in bursts."""
_WEIGHT: Final = 0.3
"""Of the newest rate in the smoothed one."""


@dataclass(frozen=True, slots=True)
class PlayingTime:
    """When a step of playing began and ended, monotonic seconds."""

    began: float
    ended: float


@dataclass(slots=True)
class PlaybackProgress:
    """Of one playback; read by whoever reports it."""

    offset: int = 0
    """Played up to here, bytes."""
    head: int = 0
    """The log's write head as last heard, bytes."""
    played_bytes: int = 0
    """Read and played so far."""
    bytes_per_second: float = 0.0
    """Smoothed rate of playing while there was something to play."""
    tailing: bool = False
    """Whether it has been at the head."""
    _window_began: float | None = None
    _window_bytes: int = 0

    @property
    def behind_bytes(self) -> int:
        """Bytes yet to play."""
        return max(0, self.head - self.offset)

    @property
    def behind_seconds(self) -> float | None:
        """How long they take at the rate so far; None: nobody knows yet."""
        if not self.behind_bytes:
            return 0.0
        return self.behind_bytes / self.bytes_per_second if self.bytes_per_second else None

    def on_idle(self) -> None:
        """Take note that all is played: waiting for somebody to write is no time of ours."""
        self._window_began = None

    def on_played(self, offset: int, head: int, *, played_bytes: int, time: PlayingTime) -> None:
        """Take note that `played_bytes` more are played."""
        self.offset, self.head = offset, max(head, offset)
        self.played_bytes += played_bytes
        if self._window_began is None:
            self._window_began, self._window_bytes = time.began, 0
        self._window_bytes += played_bytes
        seconds = time.ended - self._window_began
        if seconds >= WINDOW_SECONDS or (seconds > 0 and not self.bytes_per_second):
            rate = self._window_bytes / seconds
            smoothed = self.bytes_per_second or rate
            self.bytes_per_second = smoothed + _WEIGHT * (rate - smoothed)
            self._window_began, self._window_bytes = time.ended, 0
