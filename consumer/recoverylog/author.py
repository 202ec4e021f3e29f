"""Who writes a recovery log, and the fence that keeps all others out.

Each recorder is an *author*: a random number in each of its operations. The journal's register `author` names the one
that may append; whoever takes over sets it, with the operation that hands the log over.

Source: gazette/core consumer/recoverylog/{recorder.go,author.go} (numbers, and their text in registers).
"""

from __future__ import annotations

from typing import Final

from consumer.protocol.journal_pb2 import LabelSelector, LabelSet
from consumer.protocol.labels import label_set

AUTHOR_REGISTER: Final = "author"
AUTHOR_MAX: Final = (1 << 32) - 2
"""Zero means nobody, and all ones is left to others."""

_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def author_from(random_bits: int) -> int:
    """Return an author made of 32 or more random bits."""
    return 1 + random_bits % AUTHOR_MAX


def author_text(author: int) -> str:
    """Return the number as a register holds it: in base 32, digits 0-9 and a-v."""
    digits: list[str] = []
    while author:
        author, digit = divmod(author, 32)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


def fence_of(author: int) -> LabelSet:
    """Return the registers that make `author` the log's only writer."""
    return label_set((AUTHOR_REGISTER, author_text(author)))


def fence_check(author: int) -> LabelSelector:
    """Return what the registers must match for `author` to append."""
    return LabelSelector(include=fence_of(author))


def holds_fence(registers: LabelSet, author: int) -> bool:
    """Tell whether `author` is the one that the registers name.

    Registers may be lost; a broker then lets everyone append. That they still name us must be *seen*.
    """
    named = [label.value for label in registers.labels if label.name == AUTHOR_REGISTER]
    return named == [author_text(author)]
