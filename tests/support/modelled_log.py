"""What the real state machines make of a modelled log: pure functions of what was appended, with a memory.

A log is the tuple of its appends. A store keeps one file, whose content is one letter for each commit ever made.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.fsm import FilePlacement, OperationOutcome
from broadsheet.consumer.recoverylog.operation import framed
from broadsheet.consumer.recoverylog.playback import Playback, WriteFile
from broadsheet.wire.recorded_op_pb2 import FSMHints, RecordedOp

LOG = "log"
STATE, NEXT = "/state", "/next"
NO_HINTS = FSMHints(log=LOG).SerializeToString()


class Played(NamedTuple):
    """What a playback has come to; shared, so not to be fed any more."""

    playback: Playback
    state: bytes
    """Content of the state file: one letter for each commit ever made."""
    handed_over_at: int
    """Appends up to the one that handed the log over, or -1."""


@lru_cache(maxsize=1 << 16)
def played(hints: bytes, log: tuple[bytes, ...], author: int) -> Played | None:
    """Play a log up to its end, or to where it is handed over to `author`; None if data is lost."""
    playback = Playback(FSMHints.FromString(hints))
    playback.hand_over_to(author)  # Says whose operation to look out for.
    files: dict[int, bytes] = {}
    offset, at = 0, -1
    try:
        for number, content in enumerate(log, start=1):
            if at < 0 and offset + len(content) > playback.position.offset:
                for change in playback.feed(offset, content):
                    if isinstance(change, WriteFile):
                        files[change.fnode] = bytes(change.content)
                at = number if playback.handed_over else -1
            offset += len(content)
    except LogDataLossError:
        return None
    return Played(playback, files.get(playback.fsm.links.get(STATE, 0), b""), at)


def truth(hints: bytes, log: tuple[bytes, ...]) -> bytes | None:
    """Return the state that whoever plays the log now recovers."""
    found = played(hints, log, 0)
    return found.state if found is not None and found.playback.complete else None


def hand_over(hints: bytes, log: tuple[bytes, ...], author: int) -> bytes:
    """Return the operation that makes `author` the next recorder of a log that was played so far."""
    found = played(hints, log, 0)
    assert found is not None, "it was read before"
    return found.playback.hand_over_to(author)


class _Recorder:
    """Makes operations as the real one does, of a store that replaces one file."""

    def __init__(self, recovered: Played, author: int, head: int) -> None:
        self.fsm = recovered.playback.fsm
        self.state = recovered.state
        self._author = author
        self._head = head
        self._following = b""

    def write_next(self, letter: bytes) -> bytes:
        """Write the file that is to come."""
        self._following = self.state + letter
        content = self._unlink_if_there(NEXT)
        content += self._recorded(RecordedOp(create=RecordedOp.Create(path=NEXT)))
        write = RecordedOp.Write(fnode=self.fsm.links[NEXT], offset=0, length=len(self._following))
        return content + self._recorded(RecordedOp(write=write)) + self._following

    def rename(self) -> bytes:
        """Put it in the place of the one that was."""
        link = RecordedOp(link=RecordedOp.Link(fnode=self.fsm.links[NEXT], path=STATE))
        content = self._unlink_if_there(STATE) + self._recorded(link)
        self.state = self._following
        return content + self._unlink_if_there(NEXT)

    def _unlink_if_there(self, path: str) -> bytes:
        fnode = self.fsm.links.get(path)
        if fnode is None:
            return b""
        return self._recorded(RecordedOp(unlink=RecordedOp.Link(fnode=fnode, path=path)))

    def _recorded(self, op: RecordedOp) -> bytes:
        op.author, op.seq_no, op.checksum = self._author, self.fsm.next_seq, self.fsm.next_checksum
        payload = op.SerializeToString()
        verdict = self.fsm.apply(op, payload, FilePlacement(LOG, self._head, 0))
        assert verdict is OperationOutcome.APPLIED, (
            f"{op} recorded against the files there are: {verdict}"
        )
        return framed(payload)


class Made(NamedTuple):
    """What a recorder is made of, and how often it appended."""

    hints: bytes
    recovered: tuple[bytes, ...]
    """The log that was played."""
    author: int
    letters: bytes
    """One for each append that it made."""
    parts: int
    """Appends that a commit takes: 1 or 2."""


class Recorded(NamedTuple):
    """What a recorder has come to."""

    state: bytes
    hints: bytes
    newest: bytes
    """Its last append."""


@lru_cache(maxsize=1 << 16)
def recorded(made: Made) -> Recorded:
    """Record."""
    # Played again, for the recorder goes on where what is remembered must not.
    recovered = played.__wrapped__(made.hints, made.recovered, made.author)
    assert recovered is not None, "it was read before"
    recorder = _Recorder(recovered, made.author, sum(map(len, made.recovered)))
    newest = b""
    for index in range(len(made.letters)):
        letter = made.letters[index : index + 1]
        if made.parts == 1:
            newest = recorder.write_next(letter) + recorder.rename()
        else:
            newest = recorder.rename() if index % 2 else recorder.write_next(letter)
    hints = recorder.fsm.hints(LOG).SerializeToString(deterministic=True)
    return Recorded(recorder.state, hints, newest)
