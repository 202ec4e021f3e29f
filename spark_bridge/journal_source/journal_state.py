"""How far a journal was sequenced: all that a later scan of it needs.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broadsheet.consumer.message.sequence_rules import NOTHING_PENDING


class ProducerState(NamedTuple):
    """One producer's progress in one journal."""

    min_clock: int
    """Up to here it has committed or rolled back; earlier messages are duplicates."""
    begin: int = NOTHING_PENDING
    """Offset of the first message that awaits an acknowledgement, bytes; -1 if none does."""
    max_clock: int = 0
    """Of the last message that awaits one; 0 if none does."""
    heard_ms: int = 0
    """When it was last heard, in the journal's reading time, milliseconds."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """How far a journal was sequenced."""

    offset: int = 0
    """Below it every message was sequenced, bytes."""
    producers: Mapping[int, ProducerState] = field(default_factory=dict)
    """By 48-bit producer id."""
    read_ms: int = 0
    """How long the journal has been read (`broadsheet.consumer.message.ageing`), milliseconds. Kept here, not measured
    again, so that the state at a batch's end alone says which producers the next batch knows."""

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values; equal states give equal texts."""
        known = sorted(self.producers.items())
        producers = {f"{producer_id:012x}": _numbers(state) for producer_id, state in known}
        # A list of its own, because earlier versions read `producers`, and pass over what they do not know.
        heard = [state.heard_ms for _, state in known]
        return {
            "offset": self.offset,
            "producers": producers,
            "read_ms": self.read_ms,
            "heard_ms": heard,
        }

    @classmethod
    def from_json(cls, value: Any) -> JournalState:
        """Return the state that `to_json` gave; in one of before reading time was kept, all were heard just now.

        Raises:
            ValueError: `value` is none.
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
        """Return the state in which a journal is read that took this one's place.

        What producers have committed stays known, so that messages that are published again are not read twice; what
        they had pending was at offsets of the other journal.
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
    """Return what of a state must be kept: most producers have nothing pending."""
    if state.begin == NOTHING_PENDING:
        return [state.min_clock]
    return [state.min_clock, state.begin, state.max_clock]


def _state_of(numbers: Sequence[Any], heard_ms: int) -> ProducerState:
    """Return the state of which `_numbers` kept the numbers."""
    if len(numbers) == 1:
        return ProducerState(int(numbers[0]), heard_ms=heard_ms)
    min_clock, begin, max_clock = map(int, numbers)
    return ProducerState(min_clock, begin, max_clock, heard_ms)
