"""Forks of a recovery log: two recorders went on from the same operation.

    author A   1 2 3 ─┬─────────── 4 5 6     A never lost the fence: the broker took its 4 behind the other one
    author S          └─ 4                   appended without the fence, or with it while the registers were lost

Players follow the operation that comes first, because an author whose fence was taken can append nothing more. So A's
operations *behind* S's are a proof that S did not take the fence, unless the journal lost its registers. What A
recorded there may be a commit with acknowledgements that readers have seen: a recovery that follows S would repeat it.

The journal's registers tell who is right. They name S, or an author who went on from S: S took the fence. They name
another: A kept it, and a playback that passes over S's branch recovers what A recorded.

Source: ours. Gazette's players follow the operation that comes first.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broadsheet.wire.recorded_op_pb2 import RecordedOp


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """An operation that two authors recorded; playback followed the one whose operation came first."""

    seq_no: int
    offset: int
    """Where the operation that was followed begins, bytes."""
    followed: Mapping[int, int]
    """First sequence number by author, of all who recorded on the branch that was followed."""
    has_effects: bool
    """Whether that branch changes files or properties."""
    passed: int
    """The author who recorded before the fork, and went on recording behind it."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The first operation of an author who went on from another's."""

    seq_no: int
    checksum: int
    offset: int
    author: int
    before: int
    """The author of the operation before it."""


class ForkDetector:
    """Finds a fork among the operations of one playback."""

    def __init__(self) -> None:
        self.author = 0
        """The author of the newest operation that took its number; 0: none did."""
        self._turns: list[_Turn] = []
        """In order of their numbers."""
        self._turns_only: list[int] = []
        """Numbers of operations that change nothing, in order."""
        self._found: list[int] = []
        """Indexes of the turns that are forks, as they were found."""
        self._accepted = 0
        """Number of these, from the first on, that are accepted."""

    def on_turn(self, op: RecordedOp, offset: int) -> None:
        """Record that an operation took its number whose author is another than `author`."""
        if self.author:
            self._turns.append(_Turn(op.seq_no, op.checksum, offset, op.author, self.author))
        self.author = op.author

    def on_turn_only(self, seq_no: int) -> None:
        """Record that the operation that took a number changes nothing."""
        self._turns_only.append(seq_no)

    def on_stale(self, op: RecordedOp) -> None:
        """Record an operation whose number was taken before.

        The hand-over of a loser, and a copy of what an author repeated, are no fork.
        """
        for at, turn in enumerate(self._turns):
            if (turn.seq_no, turn.checksum, turn.before) == (op.seq_no, op.checksum, op.author):
                if at not in self._found:
                    self._found.append(at)
                return

    def accept(self) -> None:
        """Stay on the branch that was followed at the first fork that was found."""
        self._accepted += 1

    def fork(self, next_seq: int) -> Fork | None:
        """Return the first fork that was found and is not accepted.

        Args:
            next_seq: The number after the newest that was taken.
        """
        if self._accepted == len(self._found):
            return None
        at = self._found[self._accepted]
        turn = self._turns[at]
        followed: dict[int, int] = {}
        for each in self._turns[at:]:
            followed.setdefault(each.author, each.seq_no)
        turns_only = len(self._turns_only) - bisect_left(self._turns_only, turn.seq_no)
        return Fork(
            seq_no=turn.seq_no,
            offset=turn.offset,
            followed=followed,
            has_effects=next_seq - turn.seq_no > turns_only,
            passed=turn.before,
        )


def leads_elsewhere(fork: Fork, holders: Iterable[int], *, taken_by_us: bool) -> bool | None:
    """Tell whether recovery must follow the other branch; None if nothing tells.

    Args:
        fork: As playback found it.
        holders: The authors that the journal's registers name; several, or none, if they were lost.
        taken_by_us: The registers name us, because we took the fence before the fork was seen.
    """
    named = set(holders)
    if taken_by_us or not named:
        # The author before us may be of either branch. One without effects loses nothing.
        return None if fork.has_effects else True
    return named.isdisjoint(fork.followed)
