"""Forks of a recovery log: two recorders went on from the same operation.

    author A   1 2 3 ─┬─────────── 4 5 6     A never lost the fence: the broker took its 4 behind the other one
    author S          └─ 4                   appended without the fence, or with it while the registers were lost

Players follow the operation that comes first, because an author whose fence was taken can append nothing more. So A's
operations *behind* S's are a proof that S did not take the fence, unless the journal lost its registers. What A
recorded there may be a commit with acknowledgements that readers have seen: a recovery that follows S would repeat it.

The journal's registers name one author, and his operations tell of which branch he is, by their checksums:

    named, and his operations                       the log's history is
    follow from A's                                 A's branch
    follow from S's, and began before A's 4         S's branch: he took the fence, and the registers were lost after
    follow from S's behind A's 4, and are several,  S's branch: a recovery saw both, and decided so
      or another's before his are
    follow from S's behind A's 4, and is one        unknown: he was handed the log over, or was about to be, before he
                                                    could ask. He may have been stopped because he could not tell
    are none, or only before the fork               unknown

Where it is unknown, a branch that changes nothing is given up; else recovery is refused. A playback that passes over
the authors of the other branch then recovers the log's history.

Source: ours. Gazette's players follow the operation that comes first.

Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from broadsheet.wire.recorded_op_pb2 import RecordedOp

CHECKSUMS: Final = 1 << 13
"""Number of the newest operations whose checksums are kept, a power of two; 32 KiB. An operation that came too late
by more than these is told of neither branch."""
CHECKSUM_MASK: Final = CHECKSUMS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """An operation that two authors recorded; playback followed the one whose operation came first."""

    seq_no: int
    offset: int
    """Where the operation begins that was not followed, bytes."""
    followed: Mapping[int, int]
    """First sequence number by author, of all who recorded on the branch that was followed, or were to."""
    settled: frozenset[int]
    """Those of them whose fence proves that this branch is the log's history."""
    has_effects: bool
    """Whether that branch changes files or properties."""
    passed: int
    """The author whose operation came second."""
    others: Mapping[int, int]
    """First sequence number by author, of all whose operations follow from others than those of that branch, and who
    recorded nothing on it. May be empty: an author may return to the branch that was followed.
    """


@dataclass(frozen=True, slots=True)
class _Turn:
    """The first operation of an author who went on from another's."""

    seq_no: int
    checksum: int
    offset: int
    author: int
    before: int
    """The author of the operation before it."""


@dataclass(frozen=True, slots=True)
class _Late:
    """An operation that follows from those played, but whose number was taken before."""

    seq_no: int
    offset: int


def _changes(op: RecordedOp) -> bool:
    """Tell whether an operation changes files or properties."""
    return (
        op.HasField("write")
        or op.HasField("create")
        or op.HasField("link")
        or op.HasField("unlink")
        or op.HasField("property")
    )


def _number_of(turn: _Turn) -> int:
    return turn.seq_no


@dataclass(frozen=True, slots=True)
class _Found:
    """The operation that showed a fork: it follows from those played, and another took its number before."""

    seq_no: int
    offset: int
    author: int


class ForkDetector:
    """Finds a fork among the operations of one playback."""

    def __init__(self, decided: Set[tuple[int, int]] = frozenset()) -> None:
        """Begin without operations.

        Args:
            decided: Forks that were found before and are no question any more, each by `passed` and `seq_no`.
        """
        self._decided = decided
        self.author = 0
        """The author of the newest operation that took its number; 0: none did."""
        self.checksums = array("I", bytes(4 * CHECKSUMS))
        """The `checksum` of each of the newest operations that took their numbers, at its number's lowest bits.

        Written by the playback itself, because a call would cost more than that.
        """
        self._turns: list[_Turn] = []
        """In order of their numbers."""
        self._turns_only: list[int] = []
        """Numbers of operations that change nothing, in order."""
        self._first_author, self._first_seq = 0, 0
        self._found: _Found | None = None
        self._late: dict[int, _Late] = {}
        """The newest by author, of authors whose hand-over may have come too late."""
        self._others: dict[int, int] = {}
        """The first number by author, of operations that follow from others than those played."""

    def on_turn(self, op: RecordedOp, offset: int) -> None:
        """Record that an operation took its number whose author is another than `author`."""
        if self.author:
            self._turns.append(_Turn(op.seq_no, op.checksum, offset, op.author, self.author))
        else:
            self._first_author, self._first_seq = op.author, op.seq_no
        self.author = op.author

    def on_turn_only(self, seq_no: int) -> None:
        """Record that the operation that took a number changes nothing."""
        self._turns_only.append(seq_no)

    def on_stale(self, op: RecordedOp, offset: int, next_seq: int) -> None:
        """Record an operation whose number was taken before, and where it begins, bytes.

        The hand-over of a loser, and a copy of what an author repeated, are no fork.
        """
        # Hints give a lower bound of where their first operation begins: those before it are read, too, and what they
        # follow from is not known.
        if op.seq_no < self._first_seq or not self.author:
            return
        turn = self._turn_at(op.seq_no)
        # One whose turn this is, is known by all of his operations, however long ago.
        if turn is not None and turn.seq_no == op.seq_no:
            checksum: int | None = turn.checksum
        elif next_seq - op.seq_no <= CHECKSUMS:
            checksum = self.checksums[op.seq_no & CHECKSUM_MASK]
        else:
            return
        if checksum != op.checksum:
            self.on_strayed(op)
        elif op.author == (self._first_author if turn is None else turn.author):
            return  # A copy.
        elif self._went_on(op, turn):
            self._find(op.author, _Late(op.seq_no, offset))
        else:
            self._late[op.author] = _Late(op.seq_no, offset)

    def _turn_at(self, seq_no: int) -> _Turn | None:
        """Return the turn of the author who took a number; None: the first author did."""
        at = bisect_right(self._turns, seq_no, key=_number_of)
        return self._turns[at - 1] if at else None

    def _went_on(self, op: RecordedOp, turn: _Turn | None) -> bool:
        """Tell whether an operation that follows from those played is more than the hand-over of a loser."""
        if _changes(op):
            return True
        if turn is not None and turn.seq_no == op.seq_no and turn.before == op.author:
            return True
        # One whose hand-over came too late records all the same, because it took the fence.
        late = self._late.get(op.author)
        return late is not None and late.seq_no < op.seq_no

    def on_strayed(self, op: RecordedOp) -> None:
        """Record an operation that follows from others than those played."""
        late = self._late.get(op.author)
        if late is not None and late.seq_no < op.seq_no:
            # He went on from his hand-over, though another took its number: he had the fence.
            self._find(op.author, late)
        self._others.setdefault(op.author, op.seq_no)

    def _find(self, author: int, first: _Late) -> None:
        """Record the first operation of an author that is of another branch."""
        if self._found is None and (author, first.seq_no) not in self._decided:
            self._found = _Found(first.seq_no, first.offset, author)
            # An operation of his that strayed before must not hide that he is of the other branch from here on.
            if self._others.get(author, first.seq_no) < first.seq_no:
                self._others[author] = first.seq_no
        self._others.setdefault(author, first.seq_no)

    def fork(self, next_seq: int) -> Fork | None:
        """Return the first fork that was found.

        Args:
            next_seq: The number after the newest that was taken.
        """
        found = self._found
        if found is None:
            return None
        turns = self._turns[bisect_right(self._turns, found.seq_no, key=_number_of) :]
        owner = self._turn_at(found.seq_no)
        followed = {self._first_author if owner is None else owner.author: found.seq_no}
        settled = {*followed} if owner is None or owner.offset < found.offset else set[int]()
        is_decided = False
        ends = [each.seq_no for each in turns[1:]] + [next_seq]
        for each, end in zip(turns, ends, strict=False):
            followed.setdefault(each.author, each.seq_no)
            if each.offset > found.offset and end - each.seq_no > 1:
                # One who recorded behind his hand-over had recovered both, so he and all behind him are of this branch.
                is_decided = True
            if each.offset < found.offset or is_decided:
                settled.add(each.author)
        for author, late in self._late.items():
            # The number of the fork itself follows from what both branches have in common.
            if late.seq_no > found.seq_no and author not in followed:
                followed[author] = late.seq_no
                if late.offset < found.offset or is_decided:
                    settled.add(author)
        return Fork(
            seq_no=found.seq_no,
            offset=found.offset,
            followed=followed,
            settled=frozenset(settled),
            has_effects=self._has_effects(found.seq_no, next_seq),
            passed=found.author,
            others={
                author: first
                for author, first in self._others.items()
                if first >= found.seq_no and author not in followed
            },
        )

    def _has_effects(self, begin: int, end: int) -> bool:
        """Tell whether an operation with a number in [begin, end) changes files or properties."""
        turns_only = bisect_left(self._turns_only, end) - bisect_left(self._turns_only, begin)
        return end - begin > turns_only


def leads_elsewhere(fork: Fork, holders: Iterable[int]) -> bool | None:
    """Tell whether recovery must follow the other branch; None if nothing tells.

    Args:
        fork: As playback found it, of all that was appended before the registers were read.
        holders: The authors that the journal's registers name; several, or none, if they were lost. None as well if we
            took the fence before we saw the fork, because the author before us may be of either branch.
    """
    named = set(holders)
    is_followed, is_other = not named.isdisjoint(fork.settled), not named.isdisjoint(fork.others)
    if is_followed != is_other:
        return is_other
    # One without effects loses nothing.
    return None if fork.has_effects else True
