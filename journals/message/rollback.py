"""Rollbacks: acknowledgements that undo what a dead producer left unfinished in a journal.

A producer that dies before its transaction commits leaves messages that no acknowledgement will ever follow, in
journals that no checkpoint names: readers keep them as pending. So the acknowledgement that rolls them back is created
*before* the producer's first message in a journal, and stored for its successor:

    C      clock of the producer's first message in the journal
    A      clock of its last acknowledgement there, if any
    F      clock of the last acknowledgement in its last checkpoint, if any
    O      clock of its first message that no checkpoint covers

    journal:   C ... A ... (O ...  dead

An acknowledgement with a clock in [A, O) rolls back what is pending. `C - 1` is such a clock as long as the producer
has acknowledged nothing there, and `F` afterwards, because A <= F < O. Any reader of Gazette's protocol understands it.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Final

from broadsheet.journals.message.uuid import Flags, build_uuid, format_uuid, parse_uuid
from broadsheet.wire.journal_pb2 import LabelSet
from broadsheet.wire.labels import ROLLED_BACK, label_set, value_of

_UUID_BYTES = 16
UUID_TEXT_BYTES: Final = 36
NOTHING_LANDED: Final[Mapping[tuple[int, str], int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A framed acknowledgement by one producer for one journal that commits nothing."""

    journal: str
    producer: int
    """48 bits."""
    clock: int
    content: bytes
    """The frame; it holds the acknowledgement's UUID as 16 bytes, or as text."""

    @property
    def uuid(self) -> bytes:
        """The acknowledgement's UUID, 16 bytes."""
        return build_uuid(self.producer, self.clock, Flags.ACK_TXN)

    def at(self, clock: int) -> Rollback:
        """Return this rollback with another clock; unchanged if the UUID is not found in its frame.

        An encoding that hides the UUID keeps the original clock: readers then report that the producer lost progress,
        but roll back as well.
        """
        content = self._content_with(build_uuid(self.producer, clock, Flags.ACK_TXN))
        return self if content == self.content else replace(self, clock=clock, content=content)

    def of_successor(self, producer: int, clock: int) -> Rollback | None:
        """Return a rollback for the same journal by another producer; None if the UUID is not found in the frame.

        None of the other producer's messages there may have a clock up to `clock`.
        """
        content = self._content_with(build_uuid(producer, clock, Flags.ACK_TXN))
        if content == self.content:
            return None
        return replace(self, producer=producer, clock=clock, content=content)

    def _content_with(self, uuid: bytes) -> bytes:
        """Return the frame with another UUID; unchanged if the UUID is not found in it."""
        content = self.content.replace(self.uuid, uuid)
        return content.replace(_text_of(self.uuid), _text_of(uuid))

    @property
    def shows_uuid(self) -> bool:
        """True if the UUID can be found in the frame."""
        return self.uuid in self.content or _text_of(self.uuid) in self.content

    def clock_in(self, intent: bytes) -> int | None:
        """Return the clock of an intent's last frame, its acknowledgement; None if it is another producer's."""
        if len(intent) < len(self.content):
            return None
        acknowledgement = intent[-len(self.content) :]
        uuid = _same_place(self.content, self.uuid, acknowledgement) or _uuid_at_text(
            _same_place(self.content, _text_of(self.uuid), acknowledgement)
        )
        if uuid is None:
            return None
        producer, clock, flags = parse_uuid(uuid)
        return clock if producer == self.producer and flags == Flags.ACK_TXN else None


def rolled_back(producer: int) -> LabelSet:
    """Return the register of a journal in which an operator has rolled back a producer's transaction.

    It fences the producer: each append of a transaction that a program makes demands that it is absent.
    """
    return label_set((f"{ROLLED_BACK}{producer:012x}", "1"))


def not_rolled_back(producer: int) -> LabelSet:
    """Return the labels that registers must not have for a producer's transaction to go on."""
    return label_set((f"{ROLLED_BACK}{producer:012x}", ""))


def is_rolled_back(registers: LabelSet, producer: int) -> bool:
    """Tell whether a producer's transaction in the journal with these registers was rolled back by an operator."""
    return bool(value_of(registers, f"{ROLLED_BACK}{producer:012x}"))


def acknowledgements_of_carried(
    rollbacks: Iterable[Rollback], ack_intents: Mapping[str, bytes]
) -> list[Rollback]:
    """Return the bare acknowledgements of intents that carry messages.

    Args:
        rollbacks: Of the intents' producers; one for each journal that a producer published into.
        ack_intents: Of a checkpoint, by journal.
    """
    found = []
    for rollback in rollbacks:
        intent = ack_intents.get(rollback.journal, b"")
        clock = rollback.clock_in(intent)
        # A longer intent carries messages before its acknowledgement.
        if clock is not None and len(intent) > len(rollback.content):
            found.append(rollback.at(clock))
    return found


def unaccounted(rollbacks: Iterable[Rollback], ack_intents: Mapping[str, bytes]) -> list[Rollback]:
    """Return the rollbacks of producers whose last committed clock a checkpoint does not tell.

    If other members, such as Gazette's, served the shard in between, its checkpoint names only their producers, but
    ours may have committed much before. A checkpoint that names any of our producers was written by our own member,
    which brought all former rollbacks forward before that.

    Args:
        rollbacks: Of the shard's former producers.
        ack_intents: Of the restored checkpoint.
    """
    found = list(rollbacks)
    if any(_clock_in(ack_intents, rollback) is not None for rollback in found):
        return []
    return [rollback for rollback in found if rollback.shows_uuid]


def last_acknowledgement(content: bytes, producer: int) -> int | None:
    """Return the greatest clock of a producer's acknowledgements whose UUIDs are found in `content`, or None."""
    as_bytes = _acknowledgements(content, producer, producer.to_bytes(6, "big"), _UUID_BYTES)
    as_text = _acknowledgements(content, producer, f"{producer:012x}".encode(), UUID_TEXT_BYTES)
    return max(chain(as_bytes, as_text), default=None)


def _acknowledgements(content: bytes, producer: int, node: bytes, length: int) -> Iterator[int]:
    """Yield the clock of each acknowledgement's UUID; UUIDs have this length, and end with `node`."""
    at = content.find(node)
    while at >= 0:
        end = at + len(node)
        text = content[max(0, end - length) : end]
        uuid = _uuid_at_text(text) if length != _UUID_BYTES else text
        if uuid is not None and len(uuid) == _UUID_BYTES:
            found, clock, flags = parse_uuid(uuid)
            if found == producer and flags == Flags.ACK_TXN:
                yield clock
        at = content.find(node, at + 1)


def brought_forward(
    rollbacks: Iterable[Rollback],
    ack_intents: Mapping[str, bytes],
    *,
    landed: Mapping[tuple[int, str], int] = NOTHING_LANDED,
) -> list[Rollback]:
    """Return rollbacks that keep what a checkpoint committed.

    Args:
        rollbacks: Of the shard's former producers, none of which can commit any more.
        ack_intents: Of the restored checkpoint: they tell the clock at which its producer last committed. If we wrote
            the checkpoint, it holds at least one acknowledgement of a producer that has ever acknowledged.
        landed: Clocks of acknowledgements that were found in journals, by producer and journal, of producers that are
            `unaccounted` for.
    """
    found = list(rollbacks)
    clocks = [_clock_in(ack_intents, rollback) for rollback in found]
    newest: dict[int, int] = {}
    for rollback, clock in zip(found, clocks, strict=True):
        if clock is not None:
            newest[rollback.producer] = max(clock, newest.get(rollback.producer, 0))
    # If the checkpoint has the acknowledgement itself, its clock is kept: it will be repeated, and a later rollback
    # would overtake it.
    return [
        rollback.at(
            max(
                rollback.clock,
                newest.get(rollback.producer, 0),
                landed.get((rollback.producer, rollback.journal), 0),
            )
            if own is None
            else own
        )
        for rollback, own in zip(found, clocks, strict=True)
    ]


def _clock_in(ack_intents: Mapping[str, bytes], rollback: Rollback) -> int | None:
    intent = ack_intents.get(rollback.journal)
    return None if intent is None else rollback.clock_in(intent)


def _text_of(uuid: bytes) -> bytes:
    return format_uuid(uuid).encode()


def _same_place(content: bytes, part: bytes, other: bytes) -> bytes | None:
    """Return the bytes of `other` at the position of `part` in `content`; None if `content` does not hold it."""
    begin = content.find(part)
    return None if begin < 0 else other[begin : begin + len(part)]


def _uuid_at_text(text: bytes | None) -> bytes | None:
    if text is None:
        return None
    try:
        uuid = bytes.fromhex(text.decode().replace("-", ""))
    except ValueError:  # not text, or no digits
        return None
    return uuid if len(uuid) == _UUID_BYTES else None
