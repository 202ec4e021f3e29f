"""Authors and the fence of a recovery log.

Each recorder is an *author*: a random number in each of its operations. The register `author` of the journal names the
only author that may append; a successor sets it with the operation that hands the log over.

Source: gazette/core consumer/recoverylog/{recorder.go,author.go} (numbers, and their text in registers).
"""

from __future__ import annotations

from typing import Final

from broadsheet.wire.journal_pb2 import LabelSelector, LabelSet
from broadsheet.wire.labels import label_set

AUTHOR_REGISTER: Final = "author"
AUTHOR_MAX: Final = (1 << 32) - 2
"""Zero means no author, and all ones is reserved for other uses."""
_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def author_from(random_bits: int) -> int:
    """Return an author derived from 32 or more random bits."""
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
    """Return the selector that the registers must match for `author` to append."""
    return LabelSelector(include=fence_of(author))


def fence_holders(registers: LabelSet) -> frozenset[int]:
    """Return the authors that the registers name: one, or none if the registers were lost."""
    named = [label.value for label in registers.labels if label.name == AUTHOR_REGISTER]
    return frozenset(int(text, 32) for text in named if text and set(text) <= set(_DIGITS))


def holds_fence(registers: LabelSet, author: int) -> bool:
    """Tell whether the registers name `author`.

    Registers may be lost; a broker then lets every author append. So an author must *see* that they still name it.
    """
    named = [label.value for label in registers.labels if label.name == AUTHOR_REGISTER]
    return named == [author_text(author)]
