"""Groups of keys, and the ranges of them that shards of one family own.

    group = xxh3_64 of the key's bytes, mod 4096          range = [begin, end), labels key-begin and key-end

The hash and the number of groups are part of what is stored and of what other languages compute: they never change.
FNV would not do: with a modulo mapping over 2^k partitions, its groups in one partition are congruent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import xxhash

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import shown
from broadsheet.wire.journal_pb2 import LabelSet
from broadsheet.wire.labels import KEY_BEGIN, KEY_END, values_of

GROUPS: Final = 4096
"""Number of groups into which keys are divided; a shard owns a range of them."""
_DIGITS: Final = re.compile(r"[0-9a-f]{4}")


def group_of(key: bytes) -> int:
    """Return the group of a key's bytes, 0 to `GROUPS` − 1."""
    return xxhash.xxh3_64_intdigest(key) % GROUPS


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """Groups from `begin` to `end`, exclusive; never empty."""

    begin: int = 0
    end: int = GROUPS

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= GROUPS:
            raise ValidationError(
                "key_range",
                f"expected 0 <= begin < end <= {GROUPS}, got {self.begin} and {self.end}",
            )

    @property
    def is_all(self) -> bool:
        """Report whether these are all groups."""
        return self.begin == 0 and self.end == GROUPS

    def __contains__(self, group: int) -> bool:
        return self.begin <= group < self.end

    def covers(self, other: KeyRange) -> bool:
        """Report whether all groups of another range are among these."""
        return self.begin <= other.begin and other.end <= self.end

    def __str__(self) -> str:
        return f"{self.begin:04x}-{self.end:04x}"


ALL_KEYS: Final = KeyRange()


def key_range_of(labels: LabelSet) -> KeyRange:
    """Return the groups that a shard with these labels owns: all, if they say nothing.

    Raises:
        ValidationError: a bound is no bound, or the range is empty.
    """
    begins, ends = values_of(labels, KEY_BEGIN), values_of(labels, KEY_END)
    if not begins and not ends:
        return ALL_KEYS
    begin = _bound(KEY_BEGIN, begins, absent=0)
    end = _bound(KEY_END, ends, absent=GROUPS)
    if begin >= end:
        raise ValidationError(
            f"labels[{KEY_END}]",
            f"expected a bound above {KEY_BEGIN}={begin:04x}, up to {GROUPS:04x}; got {end:04x}",
        )
    return KeyRange(begin, end)


def range_labels(owned: KeyRange) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the two labels of a range."""
    return (KEY_BEGIN, f"{owned.begin:04x}"), (KEY_END, f"{owned.end:04x}")


def uncovered(ranges: Iterable[KeyRange]) -> str:
    """Return the first place at which ranges overlap or leave groups out, as text; empty if they divide all groups."""
    at = 0
    for owned in sorted(ranges):
        if owned.begin < at:
            return f"{KeyRange(owned.begin, min(at, owned.end))} is owned twice"
        if owned.begin > at:
            return f"{KeyRange(at, owned.begin)} is owned by no shard"
        at = owned.end
    return f"{KeyRange(at, GROUPS)} is owned by no shard" if at < GROUPS else ""


def _bound(name: str, values: list[str], *, absent: int) -> int:
    if not values:
        return absent
    if not _DIGITS.fullmatch(values[0]) or (number := int(values[0], 16)) > GROUPS:
        raise ValidationError(
            f"labels[{name}]",
            f"expected four lower-case hexadecimal digits from 0000 to {GROUPS:04x}, got {shown(values[0])}",
        )
    return number
