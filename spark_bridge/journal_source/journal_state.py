"""The sequencing state of a journal: everything that a later scan of it needs.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broadsheet.journals.message.sequence_rules import NOTHING_PENDING


class ProducerState(NamedTuple):
    """One producer's progress in one journal."""

    min_clock: int
    """Clock up to which it has committed or rolled back; earlier messages are duplicates."""
    begin: int = NOTHING_PENDING
    """Offset of the first message that awaits an acknowledgement, bytes; -1 if none does."""
    max_clock: int = 0
    """Clock of the last message that awaits one; 0 if none does."""
    heard_ms: int = 0
    """Time at which it was last heard, in the journal's reading time, milliseconds."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """The sequencing state of one journal."""

    offset: int = 0
    """Offset below which every message was sequenced, bytes."""
    producers: Mapping[int, ProducerState] = field(default_factory=dict)
    """By 48-bit producer id."""
    read_ms: int = 0
    """Reading time of the journal (`broadsheet.journals.message.producers`), milliseconds. Kept here, not measured
    again, so that the state at a batch's end alone determines which producers the next batch knows.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values; equal states give equal texts."""
        known = sorted(self.producers.items())
        producers = {f"{producer_id:012x}": _numbers(state) for producer_id, state in known}
        # A separate list, because earlier versions read `producers`, and ignore lists that they do not know.
        heard = [state.heard_ms for _, state in known]
        return {
            "offset": self.offset,
            "producers": producers,
            "read_ms": self.read_ms,
            "heard_ms": heard,
        }

    @classmethod
    def from_json(cls, value: Any) -> JournalState:
        """Return the state that `to_json` gave; in one without reading time, all producers were heard just now.

        Raises:
            ValueError: `value` is not a state.
        """
        try:
            read_ms = int(value.get("read_ms", 0))
            known = value["producers"]
            heard = value.get("heard_ms", [read_ms] * len(known))
            producers = {
                int(key, 16): _state_of(numbers, int(heard_ms))
                for (key, numbers), heard_ms in zip(known.items(), heard, strict=True)
            }
            return cls(int(value["offset"]), producers, read_ms)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"{value!r} is no state of a journal") from error

    def restarted(self) -> JournalState:
        """Return the state for reading a journal that replaced this one.

        The producers' committed clocks are kept, so that messages that are published again are not read twice. Their
        pending messages are dropped, because these were at offsets of the replaced journal.
        """
        return JournalState(
            0,
            {
                producer_id: ProducerState(known.min_clock, heard_ms=known.heard_ms)
                for producer_id, known in self.producers.items()
            },
            self.read_ms,
        )


AT_THE_BEGINNING: Final = JournalState()


def _numbers(state: ProducerState) -> list[int]:
    """Return the numbers of a state that must be kept, which are few because most producers have nothing pending."""
    if state.begin == NOTHING_PENDING:
        return [state.min_clock]
    return [state.min_clock, state.begin, state.max_clock]


def _state_of(numbers: Sequence[Any], heard_ms: int) -> ProducerState:
    """Return the state of the numbers that `_numbers` gave."""
    if len(numbers) == 1:
        return ProducerState(int(numbers[0]), heard_ms=heard_ms)
    min_clock, begin, max_clock = map(int, numbers)
    return ProducerState(min_clock, begin, max_clock, heard_ms)
