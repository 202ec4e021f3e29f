"""Divided journals: the journals among which the keys of another one were divided, and a key's place among them.

A journal that is too hot is *divided*: it gets parts, each with a range of groups of keys
(`broadsheet.wire.key_range`), and it takes no new transactions. A part may be divided in turn.

    orders (all) ──► orders-0000 [0000, 0800)
                 └─► orders-0800 [0800, 1000) ──► orders-0800-0800 [0800, 0c00)
                                              └─► orders-0800-0c00 [0c00, 1000)

What decides is a register of the journal, `broadsheet.dev/split-epoch`: a publisher's first append into a journal
demands that it is absent (`UNDIVIDED`). Who is refused looks the parts up, and publishes there.

A publisher that maps without a key sends all into the part of the empty key, so what it publishes keeps its order.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping as MappingOf, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from broadsheet.journals.message.partitioning import MappedJournal, Mapping
from broadsheet.wire.journal_pb2 import JournalSpec, LabelSet
from broadsheet.wire.labels import (
    SEALED_AT,
    SPLIT_EPOCH,
    SPLIT_EPOCH_DIVIDED,
    SPLIT_OF,
    label_set,
    selector,
    value_of,
)

if TYPE_CHECKING:
    from broadsheet.journals.message.column_texts import Indices
    from broadsheet.wire.key_range import KeyRange

UNDIVIDED: Final = selector(exclude=label_set((SPLIT_EPOCH, "")))
"""Demanded of a journal's registers by the first append of a publisher: that it is not divided."""
DIVIDED: Final = label_set((SPLIT_EPOCH, SPLIT_EPOCH_DIVIDED))
"""Registers, and labels, of a divided journal."""
KEYLESS: Final = b""
"""The key of what is mapped without one."""


def is_divided(labels: LabelSet) -> bool:
    """Tell whether registers, or the labels of a spec, are those of a divided journal."""
    return bool(value_of(labels, SPLIT_EPOCH))


def sealed_at(journal: JournalSpec) -> int | None:
    """Return the offset behind a divided journal's seal, bytes; None: it has none yet."""
    text = value_of(journal.labels, SEALED_AT)
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True, slots=True)
class JournalPart:
    """A journal that takes a part of the keys of a divided one."""

    journal: str
    owned: KeyRange


class DividedJournals:
    """The divided journals that a process knows of. They never become whole again, so it only learns."""

    def __init__(self) -> None:
        """Know of none."""
        self.parts: dict[str, tuple[JournalPart, ...]] = {}
        """The parts of each, by its name. Read on any thread."""
        self.origins: dict[str, str] = {}
        """The journal that each part is a part of, by the part's name; also of journals that are to be divided."""

    def learn(self, specs: Iterable[JournalSpec], *, divided: str = "") -> None:
        """Learn from specs: of parts, and of journals that are labelled as divided.

        Args:
            specs: As they were listed.
            divided: A journal that is divided although its spec may not say so yet.
        """
        from broadsheet.wire.key_range import key_range_of

        by_parent: dict[str, list[JournalPart]] = {}
        names = {divided} if divided else set()
        for spec in specs:
            if is_divided(spec.labels):
                names.add(spec.name)
            if parent := value_of(spec.labels, SPLIT_OF):
                part = JournalPart(spec.name, key_range_of(spec.labels))
                by_parent.setdefault(parent, []).append(part)
        for parent, parts in by_parent.items():
            self.origins.update((part.journal, parent) for part in parts)
        for name in names & by_parent.keys():
            self.parts[name] = tuple(sorted(by_parent[name], key=_begin))

    def adopt(self, journal: str, others: DividedJournals) -> None:
        """Learn the parts of one journal that others know to be divided.

        Raises:
            KeyError: they do not.
        """
        parts = others.parts[journal]
        self.origins.update((part.journal, journal) for part in parts)
        self.parts[journal] = parts

    def roots(self, journals: Sequence[str]) -> tuple[str, ...]:
        """Return journals without the parts of others among them: publishers reach those by way of these."""
        return tuple(each for each in journals if self.origins.get(each) not in journals)

    def below(self, journals: Iterable[str]) -> set[str]:
        """Return the parts of journals, and the parts of these."""
        found: set[str] = set()
        left = set(journals)
        while left:
            left = {part for part, origin in self.origins.items() if origin in left} - found
            found |= left
        return found

    def lacks_part(self, journal: str) -> bool:
        """Tell whether some keys of a divided journal have no part: one was deleted."""
        from broadsheet.wire.key_range import ALL_KEYS

        siblings = self.parts.get(self.origins.get(journal, ""), ())
        own = next((each.owned for each in siblings if each.journal == journal), ALL_KEYS)
        at = own.begin
        for part in self.parts.get(journal, ()):
            if part.owned.begin > at:
                return True
            at = max(at, part.owned.end)
        return at < own.end

    def part_of(self, journal: str, key: bytes) -> str:
        """Return the journal that takes a key now: the journal itself, if it is not divided.

        It is a divided one if the part that took the key was deleted; then it refuses what is published there.
        """
        if journal not in self.parts:
            return journal
        from broadsheet.wire.key_range import group_of

        return self._part_of_group(journal, group_of(key))

    def _part_of_group(self, journal: str, group: int) -> str:
        # No more often than there are divided journals: labels may name parts in a circle.
        for _ in self.parts:
            parts = self.parts.get(journal, ())
            taking = next((each.journal for each in parts if group in each.owned), None)
            if taking is None:
                break
            journal = taking
        return journal

    def mapped(
        self, mapped: MappedJournal, mapping: Mapping | MappedJournal, message: Any
    ) -> MappedJournal:
        """Return where a message goes that was mapped to a journal which may be divided.

        Args:
            mapped: The journal.
            mapping: What chose it; `modulo_mapping` and `rendezvous_mapping` know the message's key.
            message: The message.
        """
        if mapped.journal not in self.parts:
            return mapped
        key_of = getattr(mapping, "key", None)
        key = KEYLESS if key_of is None else key_of(message)
        return MappedJournal(self.part_of(mapped.journal, key), mapped.content_type)

    def divide_choices(
        self, choices: Sequence[MappedJournal], indices: Indices, keys: Sequence[bytes] | None
    ) -> tuple[list[MappedJournal], Indices]:
        """Return the choices of rows with divided journals replaced by their parts, and the index of each row's.

        Args:
            choices: Journals that were mapped to.
            indices: Of each row's among them; shape (N,).
            keys: Of the rows; None: they were mapped without.
        """
        from broadsheet.wire.key_range import GROUPS, group_of

        groups: Indices | int = group_of(KEYLESS)
        if keys is not None:
            groups = np.fromiter(map(group_of, keys), dtype=np.int64, count=len(keys))
        # Looked up once for each group of each journal, because rows are many.
        codes = indices * GROUPS + groups
        place_of = np.zeros(len(choices) * GROUPS, dtype=np.int64)
        found: dict[str, int] = {}
        divided: list[MappedJournal] = []
        for code in np.flatnonzero(np.bincount(codes, minlength=len(place_of))).tolist():
            index, group = divmod(code, GROUPS)
            name = self._part_of_group(choices[index].journal, group)
            if name not in found:
                found[name] = len(divided)
                divided.append(MappedJournal(name, choices[index].content_type))
            place_of[code] = found[name]
        return divided, place_of[codes]


def _begin(part: JournalPart) -> int:
    return part.owned.begin


def knows_any(divided: MappingOf[str, object], choices: Iterable[MappedJournal]) -> bool:
    """Tell whether any of the journals is divided."""
    return any(choice.journal in divided for choice in choices)
