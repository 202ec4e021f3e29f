"""Operations as a recorder writes them, without a recorder: to put together logs that no recorder would."""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.consumer.recoverylog.fsm import FilePlacement, FileStateMachine, OperationOutcome
from broadsheet.consumer.recoverylog.operation import framed, next_checksum
from broadsheet.wire.recorded_op_pb2 import FSMHints, Property, RecordedOp

LOG = "logs/shard-a"


@dataclass(frozen=True, slots=True)
class ChainedOp:
    """An operation, and how it stands in a log."""

    op: RecordedOp
    payload: bytes
    raw: bytes = b""

    @property
    def framed(self) -> bytes:
        """Its bytes in the log."""
        return framed(self.payload) + self.raw


class OpChain:
    """One author's operations, each after the one before."""

    def __init__(self, author: int, *, seq: int = 1, checksum: int = 0) -> None:
        self.author = author
        self.seq = seq
        self.checksum = checksum

    def branch(self, author: int) -> OpChain:
        """Return another author's chain, which goes on from here as well."""
        return OpChain(author, seq=self.seq, checksum=self.checksum)

    def nothing(self) -> ChainedOp:
        """Write an operation that only takes its number."""
        return self._chained(RecordedOp())

    def create(self, path: str) -> ChainedOp:
        """Create a file; its fnode is the operation's number."""
        return self._chained(RecordedOp(create=RecordedOp.Create(path=path)))

    def link(self, fnode: int, path: str) -> ChainedOp:
        """Give a file one more path."""
        return self._chained(RecordedOp(link=RecordedOp.Link(fnode=fnode, path=path)))

    def unlink(self, fnode: int, path: str) -> ChainedOp:
        """Take a path from a file."""
        return self._chained(RecordedOp(unlink=RecordedOp.Link(fnode=fnode, path=path)))

    def write(self, fnode: int, offset: int, raw: bytes) -> ChainedOp:
        """Write to a file."""
        write = RecordedOp.Write(fnode=fnode, offset=offset, length=len(raw))
        return self._chained(RecordedOp(write=write), raw)

    def set_property(self, path: str, content: str) -> ChainedOp:
        """Replace a small file as a whole."""
        return self._chained(RecordedOp(property=Property(path=path, content=content)))

    def _chained(self, op: RecordedOp, raw: bytes = b"") -> ChainedOp:
        op.author, op.seq_no, op.checksum = self.author, self.seq, self.checksum
        payload = op.SerializeToString()
        self.seq += 1
        self.checksum = next_checksum(self.checksum, payload)
        return ChainedOp(op, payload, raw)


@dataclass(slots=True)
class FileLog:
    """The content of one log, and a state machine that has seen it; the hints of both are exact."""

    fsm: FileStateMachine
    name: str = LOG
    content: bytes = b""

    @classmethod
    def empty(cls, name: str = LOG) -> FileLog:
        """Return one without operations."""
        return cls(FileStateMachine(FSMHints(log=name)), name)

    def append(self, *ops: ChainedOp) -> list[OperationOutcome]:
        """Append operations, and return what became of each."""
        return [self._append(each) for each in ops]

    def garbage(self, content: bytes) -> None:
        """Append bytes that are no operation."""
        self.content += content

    def hints(self) -> FSMHints:
        """Return hints of now."""
        return self.fsm.hints(self.name)

    def _append(self, each: ChainedOp) -> OperationOutcome:
        begin = len(self.content)
        self.content += each.framed
        return self.fsm.apply(
            each.op, each.payload, FilePlacement(self.name, begin, len(self.content))
        )
