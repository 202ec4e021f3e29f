"""A position in a shard: a sequence number of any size, or one of four names, in one total order.

    AT_TIMESTAMP  <  TRIM_HORIZON  <  LATEST  <  every number, by value  <  SHARD_END

So a starting position can be a lower bound, and never counts as progress once a number was committed; the end of a
shard is beyond every number. Records unpacked from one aggregate share its number and are ordered by `sub`.

Positions are normalised when made: numbers have no leading zeros and names no `sub`, so equal positions compare equal.

Source: awslabs/amazon-kinesis-client ExtendedSequenceNumber (names and order); the normal form is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broadsheet.leases.errors import InvalidPositionError

AT_TIMESTAMP: Final = "AT_TIMESTAMP"
TRIM_HORIZON: Final = "TRIM_HORIZON"
LATEST: Final = "LATEST"
SHARD_END: Final = "SHARD_END"

_RANKS: Final = {AT_TIMESTAMP: -3, TRIM_HORIZON: -2, LATEST: -1, SHARD_END: 1}
_NUMBER_RANK: Final = 0
DIGITS_MAX: Final = 1_000
"""Longest sequence number; Kinesis' have 56 digits."""
SUB_MAX: Final = 2**63 - 1
"""Largest sub-sequence number: the stores that hold it have 64 bits, signed."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a shard: everything up to it is processed, and a successor continues after it.

    Two positions that differ only in the broker's offset are not equal, and neither comes before the other.
    """

    seq: str
    """Decimal digits of any length, or one of the four names."""
    sub: int = 0
    """Index of a record within its aggregate, from 0."""
    offset: str | None = None
    """The broker's offset of the same place; stored for the broker and never interpreted."""

    def __post_init__(self) -> None:
        if isinstance(self.sub, bool) or not 0 <= self.sub <= SUB_MAX:
            raise InvalidPositionError(
                f"position.sub: expected a whole number in [0, 2**63), got {self.sub!r}"
            )
        if self.seq in _RANKS:
            object.__setattr__(self, "sub", 0)
        elif _is_number(self.seq):
            object.__setattr__(self, "seq", self.seq.lstrip("0") or "0")
        else:
            raise InvalidPositionError(
                f"position.seq: expected 1 to {DIGITS_MAX} digits or one of {', '.join(_RANKS)}, got {self.seq!r:.80}"
            )

    @property
    def is_name(self) -> bool:
        """True for one of the four names, False for a number."""
        return self.seq in _RANKS

    @property
    def is_end(self) -> bool:
        """True if the whole shard is processed."""
        return self.seq == SHARD_END

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._rank() < other._rank()

    def __le__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._rank() <= other._rank()

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._rank() > other._rank()

    def __ge__(self, other: object) -> bool:
        if not isinstance(other, Position):
            return NotImplemented
        return self._rank() >= other._rank()

    def _rank(self) -> tuple[int, int, str, int]:
        """Return the sort key of a position; the longer of two normalised numbers is the larger."""
        rank = _RANKS.get(self.seq)
        if rank is not None:
            return (rank, 0, "", 0)
        return (_NUMBER_RANK, len(self.seq), self.seq, self.sub)


def _is_number(text: str) -> bool:
    """Tell whether a text is ASCII digits only; `str.isdigit` and `int` accept other scripts too."""
    return 1 <= len(text) <= DIGITS_MAX and text.isascii() and text.isdigit()
