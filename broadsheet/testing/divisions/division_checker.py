"""Checks the invariants of divided journals, beside those of a family (`broadsheet.testing.families.family_checker`).

D1  messages of a key are read once, in the order in which they were published, over every seal
D2  nothing that was not shown before is shown behind a journal's seal
D3  in the end no division is under way, and no shard has a sealed journal among its sources
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broadsheet.journals.message.batch import Envelope
from broadsheet.testing.divisions.application import MIDDLE, recording_group
from broadsheet.testing.divisions.writers import OUTSIDE
from broadsheet.testing.families.family_checker import FamilyChecker
from broadsheet.testing.shards.broker import Appended
from broadsheet.testing.shards.history_checker import CommittedHistory


@dataclass(slots=True)
class DivisionChecker(FamilyChecker):
    """Checks the invariants of a family that reads divided journals."""

    group_of: Callable[[int], int] = recording_group
    seals: Callable[[], Mapping[str, int]] = dict
    """The offsets behind the seals of journals, by name."""
    _shown_at: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    """By journal: where the last append began that showed anything, and what it showed."""

    def on_appended(self, appended: Appended) -> None:
        """Check an append."""
        name = appended.journal
        # Named, because a slotted dataclass is another class than the one that `super()` finds.
        FamilyChecker.on_appended(self, appended)
        if not name.startswith(MIDDLE):
            return
        numbers = self._views.setdefault(name, CommittedHistory(name)).feed(appended)
        if numbers:
            self.tell(f"{name} shows {','.join(map(str, numbers))}")
            self.committed.update(number for number in numbers if number >= OUTSIDE)
            self._shown_at[name] = appended.begin, numbers
            self.check_seals()

    def check_seals(self) -> None:
        """Check that nothing new is behind a seal."""
        for journal, sealed in self.seals().items():
            begin, numbers = self._shown_at.get(journal, (-1, []))
            if begin >= sealed:
                self.violate(
                    "D2", f"{journal} shows {numbers} at {begin}, and was sealed at {sealed}"
                )

    def on_read(self, shard: str, envelope: Envelope, *, place: int, expected: int) -> None:
        """Check the place of a message among those of its key."""
        if place != expected:
            key = envelope.message["key"]
            self.violate(
                "D1",
                f"{shard} reads message {place} of {key} from {envelope.journal}, and expected {expected}",
            )

    def missing(self) -> list[str]:
        """Return the expectations of a run's end that are not met yet, in words."""
        self.check_seals()
        return FamilyChecker.missing(self)
