"""The order in which a stream reads a divided journal and its parts (`broadsheet.journals.message.division`).

A key's messages are in the journal up to its seal, and in one part behind it. A part is therefore held back until the
journal is read to its seal, as shards hold it back.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broadsheet.journals.message.division import sealed_at
from broadsheet.spark_bridge.journal_source.journal_state import AT_THE_BEGINNING, JournalState
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import SPLIT_OF, value_of


class DividedOrder:
    """Which parts wait for which journals, as far as both are selected."""

    def __init__(self) -> None:
        """Know of no division."""
        self._seals: dict[str, tuple[str, int | None]] = {}
        """By part: the journal that is read first, and the offset behind its seal, bytes; None: it has none yet."""
        self._told: set[str] = set()

    def learn(self, specs: Iterable[JournalSpec]) -> list[str]:
        """Learn from the selected journals; return those that were divided, and of whose parts none is selected, once.

        Args:
            specs: Of all selected journals, as they are now.
        """
        by_name = {spec.name: spec for spec in specs}
        parents = {name: value_of(spec.labels, SPLIT_OF) for name, spec in by_name.items()}
        self._seals = {
            part: (journal, sealed_at(by_name[journal]))
            for part, journal in parents.items()
            if journal in by_name
        }
        sealed = {name for name, spec in by_name.items() if sealed_at(spec) is not None}
        untold = sorted(sealed - set(parents.values()) - self._told)
        self._told.update(untold)
        return untold

    def held_back(self, states: Mapping[str, JournalState]) -> list[str]:
        """Return the parts whose journal is not read to its seal.

        Args:
            states: What was read, by journal; nothing of those that are missing.
        """
        return [
            part
            for part, (journal, seal) in self._seals.items()
            if seal is None or states.get(journal, AT_THE_BEGINNING).offset < seal
        ]
