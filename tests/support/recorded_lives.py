"""Whole lives of recovery logs, made up at random, and their playback from a part of their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

from broadsheet.consumer.recoverylog.fsm import FilePlacement, FileStateMachine
from broadsheet.consumer.recoverylog.playback import CreateFile, FileChange, Playback, WriteFile
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.recorded_ops import ChainedOp, OpChain

Pieces = Sequence[tuple[int, bytes]]
"""What is there of a log: offset and content of each piece, ascending."""


@dataclass
class RecordedLife:
    """A store's files through several recorders. Hints are kept as a recorder and as a player would make them."""

    random: Random
    log: str = "logs/a"
    logs: dict[str, bytes] = field(default_factory=dict)
    """Content by log."""
    backups: list[FSMHints] = field(default_factory=list)
    """What each recovery began from, oldest first."""

    def __post_init__(self) -> None:
        self.logs[self.log] = b""
        self._known = FileStateMachine(FSMHints(log=self.log))
        self._author = 1
        self._chain = OpChain(1)
        self._begin_recorder()

    def hints(self) -> FSMHints:
        """Return what the present recorder would write as primary hints."""
        return self._recording.hints(self.log)

    def work(self) -> None:
        """Do something to some file, or have what was recorded reach the log for certain."""
        links = self._known.links
        path = f"file-{self.random.randrange(6)}"
        action = self.random.random()
        if action < 0.1:
            self._sure_bytes = len(self.logs[self.log])
        elif path not in links:
            self._append(self._chain.create(path))
        elif action < 0.7:
            raw = self.random.randbytes(self.random.randrange(40))
            self._append(self._chain.write(links[path], self.random.randrange(20), raw))
        elif action < 0.85:
            self._append(self._chain.unlink(links[path], path))
        elif f"{path}.link" not in links:
            self._append(self._chain.link(links[path], f"{path}.link"))
        else:
            self._append(self._chain.unlink(links[f"{path}.link"], f"{path}.link"))

    def fail_over(self) -> None:
        """Hand the log over to another recorder, against which the old one still writes."""
        zombie = self._chain
        self._author += 1
        self._chain = zombie.branch(self._author)
        self._append(self._chain.nothing())
        self.backups.append(self._known.hints(self.log))
        self._begin_recorder()
        for number in range(self.random.randrange(3)):
            self.logs[self.log] += zombie.create(f"zombie-{number}").framed

    def fork(self, log: str) -> RecordedLife:
        """Return another life, which begins with the files of this one and goes on in a log of its own."""
        other = deepcopy(self)
        other.log, other.logs, other.backups = log, {log: b""}, []
        other.branch_off()
        return other

    def branch_off(self) -> None:
        """Go on as another author, with a file that the life before does not have."""
        self._author += 100
        self._chain = self._chain.branch(self._author)
        self._append(self._chain.create(f"born-in-{self.log.replace('/', '-')}"))
        self._begin_recorder()

    def _begin_recorder(self) -> None:
        self._recording = deepcopy(self._known)
        self._sure_bytes = len(self.logs[self.log])

    def _append(self, op: ChainedOp) -> None:
        begin = len(self.logs[self.log])
        self.logs[self.log] += op.framed
        for fsm, place in (
            (self._known, FilePlacement(self.log, begin, len(self.logs[self.log]))),
            (self._recording, FilePlacement(self.log, self._sure_bytes, 0)),
        ):
            assert fsm.apply(op.op, op.payload, place).stepped


def played(hints: FSMHints, logs: Mapping[str, Pieces]) -> dict[str, bytes]:
    """Return what playback makes of the pieces that there are of the logs: content by path.

    Raises:
        LogDataLossError: something was missing, and playback noticed.
        AssertionError: something was missing, and the hints were not used up.
    """
    playback = Playback(hints)
    files: dict[int, bytearray] = {}
    while True:
        position = playback.position
        jumped = _play_log(playback, logs[position.log], files)
        if not jumped:
            break
    assert playback.complete, f"the log ended before {playback.fsm.hinted_segments[0]}"
    return {path: bytes(files[fnode]) for path, fnode in playback.fsm.links.items()}


def _play_log(playback: Playback, pieces: Pieces, files: dict[int, bytearray]) -> bool:
    """Feed one log from where the playback is; tell whether it wants another one."""
    log = playback.position.log
    for offset, content in pieces:
        seek = playback.seek
        if seek is not None:
            if seek.log != log:
                playback.go_to(seek)
                return True
            if offset + len(content) > seek.offset:
                playback.go_to(seek)
        if offset + len(content) <= playback.position.offset:
            continue
        skipped = max(0, playback.position.offset - offset) if seek is not None else 0
        for change in playback.feed(offset + skipped, content[skipped:]):
            _perform(change, files)
    seek = playback.seek
    if seek is None or seek.log == log:
        return False
    playback.go_to(seek)
    return True


def _perform(change: FileChange, files: dict[int, bytearray]) -> None:
    if isinstance(change, CreateFile):
        files[change.fnode] = bytearray()
    elif isinstance(change, WriteFile):
        file = files[change.fnode]
        end = change.offset + len(change.content)
        file.extend(bytes(max(0, end - len(file))))
        file[change.offset : end] = change.content
    else:
        del files[change.fnode]
