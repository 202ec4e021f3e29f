"""The file state machine of a recovery log, shared by recorder and player.

It derives the live files from a log's operations. An operation applies if it has the next sequence number, the next
checksum, and, while hints say so, the author whose branch is being recovered. A file is identified forever by its
*fnode*, the number of the operation that created it.

Hints name the fnodes that were live when they were made. Operations on other fnodes are skipped, because those files
are gone. Hints also hold every property as of that moment, which is later than most operations played from them: an
older value, or a file that had the path before, must not stop the playback.

Source: gazette/core consumer/recoverylog/fsm.go (conditions and their order). That older operations neither conflict
with a hinted property's path nor reset its value is ours.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from broadsheet.consumer.errors import HintsError
from broadsheet.consumer.recoverylog.operation import next_checksum
from broadsheet.consumer.recoverylog.segments import (
    Segment,
    SegmentSet,
    segment_from,
    segment_message,
)
from broadsheet.wire import recorded_op_pb2 as pb


class OperationOutcome(Enum):
    """The outcome of applying an operation."""

    APPLIED = "applied"
    NOT_TRACKED = "of a file that is gone: stepped over"
    STALE = "an earlier sequence number than the next: a copy, or of an author who was fenced"
    NOT_HINTED_AUTHOR = "of an author whose branch the hints do not follow"
    SEQUENCE_SKIPPED = "a later sequence number than the next"
    CHECKSUM_MISMATCH = "another checksum than the next"
    HINTED_FNODE_NOT_CREATED = "the hints have it create a file, and it does not"
    PATH_TAKEN = "the path names another file"
    PATH_NOT_LINKED = "the path does not name the file"

    @property
    def stepped(self) -> bool:
        """True if the operation took its sequence number."""
        return self is _APPLIED or self is _NOT_TRACKED

    @property
    def expected(self) -> bool:
        """True if every recovery log has such operations; other outcomes are worth a log line."""
        return self.stepped or self in (OperationOutcome.STALE, OperationOutcome.NOT_HINTED_AUTHOR)


# Bound once because looking up an enum's member is slow before Python 3.12, and every operation needs one.
_APPLIED, _NOT_TRACKED = OperationOutcome.APPLIED, OperationOutcome.NOT_TRACKED


@dataclass(slots=True)
class FilePlacement:
    """The position of an operation in a log. Not frozen, because that would double the cost of creating one."""

    log: str
    first_offset: int
    """Offset of its first byte; a recorder knows only a lower bound."""
    last_offset: int
    """Offset after its last byte, raw bytes included; 0: unknown."""


class Fnode:
    """A live file."""

    __slots__ = ("_last_offset", "_last_seq", "_newest", "_past", "links")

    def __init__(self, path: str) -> None:
        self.links: set[str] = {path}
        """Its paths; never empty."""
        self._past: list[Segment] = []
        self._newest: Segment | None = None
        """As it began; it extends to the operation below."""
        self._last_seq = 0
        self._last_offset = 0

    @property
    def segments(self) -> list[Segment]:
        """The segments with the operations that produced its content."""
        return [*self._past, *self._closed()]

    def touch(self, op: pb.RecordedOp, place: FilePlacement) -> None:
        """Record that the file's recovery needs an operation."""
        newest = self._newest
        # A segment is of one author and one log.
        if newest is None or newest.author != op.author or newest.log != place.log:
            self._past += self._closed()
            self._newest = _segment_of(op, place)
        self._last_seq, self._last_offset = op.seq_no, place.last_offset

    def _closed(self) -> list[Segment]:
        return [self._newest.extended(self._last_seq, self._last_offset)] if self._newest else []


def _segment_of(op: pb.RecordedOp, place: FilePlacement) -> Segment:
    return Segment(
        author=op.author,
        first_seq=op.seq_no,
        first_offset=place.first_offset,
        first_checksum=op.checksum,
        last_seq=op.seq_no,
        last_offset=place.last_offset,
        log=place.log,
    )


class FileStateMachine:
    """The live files by path, derived from operations in order."""

    def __init__(self, hints: pb.FSMHints) -> None:
        """Start where the first live file of `hints` begins, or at the log's beginning if they name none.

        Raises:
            HintsError: the hints contradict themselves.
        """
        fnodes, segments = live_segments(hints)
        self.next_seq = 1
        self.next_checksum = 0
        self.last_log = hints.log
        """The log of the newest operation."""
        self.properties: dict[str, str] = {}
        if fnodes:  # Otherwise the whole log is played from its beginning, and sets them.
            self.properties = {each.path: each.content for each in hints.properties}
        self._hinted_properties = frozenset(self.properties)
        self._unplayed_properties = set(self.properties)
        """Properties of the hints that no operation has set yet."""
        self.fnodes: dict[int, Fnode] = {}
        self.links: dict[str, int] = {}
        self.hinted_segments: deque[Segment] = deque(segments)
        """Segments of the hints that are still to be read, in order."""
        self.hinted_fnodes: deque[int] = deque(fnodes)
        """Fnodes of the hints that are still to be created, in order."""
        self._enter_hinted_segment()

    def apply(self, op: pb.RecordedOp, payload: bytes, place: FilePlacement) -> OperationOutcome:
        """Apply an operation, encoded as `payload`; one that does not apply changes nothing."""
        verdict = self._check(op)
        if verdict is _APPLIED:
            verdict = self._effect(op, place)
            if verdict is _APPLIED or verdict is _NOT_TRACKED:
                self._step(payload, place.log)
        return verdict

    def hints(self, log: str) -> pb.FSMHints:
        """Return hints for the recovery of the files that are live now; recording goes on in `log`."""
        return pb.FSMHints(
            log=log,
            live_nodes=[
                pb.FnodeSegments(
                    fnode=number,
                    segments=[segment_message(each, log) for each in self.fnodes[number].segments],
                )
                for number in sorted(self.fnodes)
            ],
            properties=[
                pb.Property(path=path, content=content)
                for path, content in sorted(self.properties.items())
            ],
        )

    # -- one operation

    def _check(self, op: pb.RecordedOp) -> OperationOutcome:
        hinted = self.hinted_segments
        # Operations of a fenced recorder may lie between those of the branch that the hints name.
        if hinted and hinted[0].author != op.author:
            return OperationOutcome.NOT_HINTED_AUTHOR
        seq = op.seq_no
        if seq != self.next_seq:
            return (
                OperationOutcome.STALE if seq < self.next_seq else OperationOutcome.SEQUENCE_SKIPPED
            )
        if op.checksum != self.next_checksum:
            return OperationOutcome.CHECKSUM_MISMATCH
        return _APPLIED

    def _effect(self, op: pb.RecordedOp, place: FilePlacement) -> OperationOutcome:
        hinted = self.hinted_fnodes
        if hinted and hinted[0] == op.seq_no and not op.HasField("create"):
            return OperationOutcome.HINTED_FNODE_NOT_CREATED
        if op.HasField("write"):  # Checked first, because most operations are writes.
            return self._touch(op.write.fnode, op, place)
        if op.HasField("create"):
            return self._create(op, place)
        if op.HasField("link"):
            return self._link(op, place)
        if op.HasField("unlink"):
            return self._unlink(op, place)
        if op.HasField("property"):
            return self._set_property(op.property)
        return _APPLIED  # Its only effect is to take its sequence number.

    def _create(self, op: pb.RecordedOp, place: FilePlacement) -> OperationOutcome:
        path = op.create.path
        if self._taken(path):
            return OperationOutcome.PATH_TAKEN
        if self.hinted_segments:
            # A file that the hints do not name was gone when they were made. Its removal may be in a skipped range.
            if not self.hinted_fnodes or self.hinted_fnodes[0] != op.seq_no:
                return _NOT_TRACKED
            self.hinted_fnodes.popleft()
        self.fnodes[op.seq_no] = Fnode(path)
        self.links[path] = op.seq_no
        return self._touch(op.seq_no, op, place)

    def _link(self, op: pb.RecordedOp, place: FilePlacement) -> OperationOutcome:
        number, path = op.link.fnode, op.link.path
        if self._taken(path):
            return OperationOutcome.PATH_TAKEN
        if number not in self.fnodes:
            return _NOT_TRACKED
        self.fnodes[number].links.add(path)
        self.links[path] = number
        return self._touch(number, op, place)

    def _unlink(self, op: pb.RecordedOp, place: FilePlacement) -> OperationOutcome:
        number, path = op.unlink.fnode, op.unlink.path
        fnode = self.fnodes.get(number)
        if fnode is None:
            return _NOT_TRACKED
        if path not in fnode.links:
            return OperationOutcome.PATH_NOT_LINKED
        fnode.links.discard(path)
        del self.links[path]
        if fnode.links:
            return self._touch(number, op, place)
        # A file without a path is gone, so its recovery needs none of its operations.
        del self.fnodes[number]
        return _APPLIED

    def _set_property(self, each: pb.Property) -> OperationOutcome:
        path = each.path
        if path in self.links:
            return OperationOutcome.PATH_TAKEN
        self._unplayed_properties.discard(path)
        # The hints are newer than every operation in their segments.
        if not self.hinted_segments or path not in self._hinted_properties:
            self.properties[path] = each.content
        return _APPLIED

    def _taken(self, path: str) -> bool:
        return path in self.links or (
            path in self.properties and path not in self._unplayed_properties
        )

    def _touch(self, number: int, op: pb.RecordedOp, place: FilePlacement) -> OperationOutcome:
        fnode = self.fnodes.get(number)
        if fnode is None:
            return _NOT_TRACKED
        fnode.touch(op, place)
        return _APPLIED

    # -- where we are

    def _step(self, payload: bytes, log: str) -> None:
        done = self.next_seq
        self.next_seq += 1
        self.next_checksum = next_checksum(self.next_checksum, payload)
        self.last_log = log
        hinted = self.hinted_segments
        if hinted and hinted[0].last_seq <= done:
            self.hinted_segments.popleft()
            self._enter_hinted_segment()

    def _enter_hinted_segment(self) -> None:
        # Operations between two segments are not live, so sequence and checksum continue at the next one's begin.
        if self.hinted_segments:
            self.next_seq = self.hinted_segments[0].first_seq
            self.next_checksum = self.hinted_segments[0].first_checksum


def live_segments(hints: pb.FSMHints) -> tuple[list[int], SegmentSet]:
    """Return the live fnodes, ascending, and the segments that must be read to recover them.

    Raises:
        HintsError: the hints contradict themselves.
    """
    fnodes: list[int] = []
    segments = SegmentSet()
    for node in hints.live_nodes:
        if not node.segments or node.fnode != node.segments[0].first_seq_no:
            raise HintsError(
                hints.log, f"fnode {node.fnode}: expected segments, the first of which creates it"
            )
        if fnodes and node.fnode <= fnodes[-1]:
            raise HintsError(hints.log, f"expected fnodes to ascend, got {node.fnode} late")
        fnodes.append(node.fnode)
        for message in node.segments:
            segments.add(segment_from(message, hints.log))
    newest = list(segments)[-1:]
    if newest and newest[0].log != hints.log:
        raise HintsError(hints.log, f"expected the last segment in this log, got {newest[0].log!r}")
    return fnodes, segments
