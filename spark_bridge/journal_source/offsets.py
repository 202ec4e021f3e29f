"""Offsets of a stream of micro-batches, as Spark keeps them in the checkpoint.

    {"start": "latest"}                                     before the first batch: not known yet
    {"journals": {name: state, ...}, "began": {...}}        after the first batch: where it began and ended
    {"journals": {name: state, ...}}                        later
    {..., "epochs": {name: [incarnation, number, nonce]}}   of which incarnation of each journal that is, where known
    {..., "began": {name: state}}                           later, where the batch began elsewhere than the one before
                                                            ended: in a journal that was replaced

Spark keeps the end of each batch, and asks for the first batch's beginning again when it repeats that batch. So the
first end also says where the batch began, because a write head that was looked up again would have moved on.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broadsheet.runtime.formats import MIN_READER, Format
from broadsheet.spark_bridge.journal_source.journal_state import AT_THE_BEGINNING, JournalState
from broadsheet.wire.identity_pb2 import JournalEpoch

OFFSETS: Final = Format(
    "offsets of journals in a checkpoint of Spark", "run the query with that release"
)

States = Mapping[str, JournalState]
Epochs = Mapping[str, JournalEpoch]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The state of each journal."""

    journals: States
    began: States | None = None
    """Beginning of the first batch; of others, the beginning in journals that were replaced; None if none was."""
    epochs: Epochs = field(default_factory=dict)
    """Epochs of the journals whose brokers tell them."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values; equal offsets give equal texts."""
        value: dict[str, Any] = {"journals": _to_json(self.journals)}
        if self.began is not None:
            value["began"] = _to_json(self.began)
        if self.epochs:
            value["epochs"] = {name: _epoch_json(self.epochs[name]) for name in sorted(self.epochs)}
        return value


@dataclass(frozen=True, slots=True)
class SymbolicStart:
    """The beginning of a stream that has read nothing yet."""

    text: str
    """The option's text."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON values."""
        return {"start": self.text}


def parse_offset(value: Mapping[str, Any]) -> StreamOffset | SymbolicStart:
    """Return the offset that `to_json` gave.

    Raises:
        ValueError: `value` is not an offset; the checkpoint belongs to another source.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an offset of journals, got {value!r:.80}")
    OFFSETS.check(value.get(MIN_READER, 1))
    # The first batch's beginning as Spark keeps it, which was not looked up yet.
    if "start" in value:
        return SymbolicStart(str(value["start"]))
    if "journals" not in value:
        raise ValueError(f"{value!r} is no offset of journals: is the checkpoint another query's?")
    began = value.get("began")
    return StreamOffset(
        _from_json(value["journals"]),
        None if began is None else _from_json(began),
        _epochs(value.get("epochs", {})),
    )


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """The beginning and the end of a micro-batch."""

    start: States
    end: States
    names: list[str] = field(init=False)
    """Journals in which the batch moves on, ascending."""

    def __post_init__(self) -> None:
        moved = [name for name, state in self.end.items() if state != self.start_of(name)]
        object.__setattr__(self, "names", sorted(moved))

    def start_of(self, journal: str) -> JournalState:
        """Return the state at the batch's beginning in a journal; a new journal is read from its first byte."""
        return self.start.get(journal, AT_THE_BEGINNING)


def span_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> BatchSpan:
    """Return the span between two offsets that Spark kept.

    Raises:
        ValueError: they are not such offsets.
    """
    first, last = parse_offset(start), parse_offset(end)
    if isinstance(last, SymbolicStart):
        return BatchSpan({}, {})  # nothing has been read yet
    if isinstance(first, SymbolicStart):
        if last.began is None:
            raise ValueError(f"{end!r} does not say where the first batch began")
        return BatchSpan(last.began, last.journals)
    # An empty batch ends where it begins; the beginning in its end is that of the batch before.
    elsewhere = last.began if first != last else None
    return BatchSpan({**first.journals, **(elsewhere or {})}, last.journals)


def _epoch_json(epoch: JournalEpoch) -> list[Any]:
    # As text, because not every JSON reader accepts 64-bit numbers.
    return [epoch.incarnation.hex(), epoch.number, f"{epoch.nonce:x}"]


def _epochs(value: Any) -> dict[str, JournalEpoch]:
    try:
        return {
            str(name): JournalEpoch(
                incarnation=bytes.fromhex(incarnation), number=number, nonce=int(nonce, 16)
            )
            for name, (incarnation, number, nonce) in value.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"expected epochs by journal, got {value!r:.80}: {error}") from error


def _to_json(states: States) -> dict[str, Any]:
    return {name: states[name].to_json() for name in sorted(states)}


def _from_json(value: Any) -> dict[str, JournalState]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected states by journal, got {value!r:.80}")
    return {str(name): JournalState.from_json(state) for name, state in value.items()}
