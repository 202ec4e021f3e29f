"""How far a journal was sequenced: all that a later scan of it needs.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from consumer.message.producers import NOTHING_PENDING


class ProducerState(NamedTuple):
    """One producer's progress in one journal."""

    min_clock: int
    """Up to here it has committed or rolled back; earlier messages are duplicates."""
    begin: int = NOTHING_PENDING
    """Offset of the first message that awaits an acknowledgement, bytes; -1 if none does."""
    max_clock: int = 0
    """Of the last message that awaits one; 0 if none does."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """How far a journal was sequenced."""

    offset: int = 0
    """Below it every message was sequenced, bytes."""
    producers: Mapping[int, ProducerState] = field(default_factory=dict)
    """By 48-bit producer id."""

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values; equal states give equal texts."""
        producers = {
            f"{producer_id:012x}": _numbers(state)
            for producer_id, state in sorted(self.producers.items())
        }
        return {"offset": self.offset, "producers": producers}

    @classmethod
    def from_json(cls, value: Any) -> JournalState:
        """Return the state that `to_json` gave.

        Raises:
            ValueError: `value` is none.
        """
        try:
            producers = {
                int(key, 16): ProducerState(*map(int, numbers))
                for key, numbers in value["producers"].items()
            }
            return cls(int(value["offset"]), producers)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{value!r} is no state of a journal") from error


AT_THE_BEGINNING: Final = JournalState()


def _numbers(state: ProducerState) -> list[int]:
    """Return what of a state must be kept: most producers have nothing pending."""
    return list(state) if state.begin != NOTHING_PENDING else [state.min_clock]
