"""Identity of a journal's content: an incarnation, and the epochs that its openings begin.

Every opening begins an epoch, whether it lost content or not, because a broker cannot know what a damaged tail, or a
directory restored from an older copy, once held. An epoch without loss costs nothing: its first byte is where the
previous one ended, so every earlier offset still refers to the same content.

Source: KIP-101 (leader epochs tell where a follower's log departs from its leader's).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from broadsheet.wire.identity_pb2 import JournalIdentity

INCARNATION_BYTES = 16
NONCE_BITS = 64
EPOCHS_MAX = 64
"""Epochs kept: about 1 KiB in the first answer of a read. Offsets of older epochs are judged by those that remain."""

Epoch = tuple[int, int, int]
"""Number, nonce, and first byte."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Identity of one journal's content."""

    incarnation: bytes
    """Empty in data written before journals had an incarnation."""
    epochs: tuple[Epoch, ...]
    """Ascending; the last one is the current epoch."""

    def next_epoch(self, begin: int) -> Lineage:
        """Return the lineage of an opening whose new content begins at an offset, bytes.

        An unknown incarnation, whose record is lost or older than incarnations, is replaced by a new one.
        """
        if not self.incarnation:
            return Lineage(secrets.token_bytes(INCARNATION_BYTES), (_epoch(1, begin),))
        number = self.epochs[-1][0] + 1 if self.epochs else 1
        return Lineage(self.incarnation, (*self.epochs, _epoch(number, begin))[-EPOCHS_MAX:])

    def message(self) -> JournalIdentity:
        """Return the lineage as a message to clients."""
        return JournalIdentity(
            incarnation=self.incarnation,
            epochs=[
                JournalIdentity.Epoch(number=number, nonce=nonce, begin=begin)
                for number, nonce, begin in self.epochs
            ],
        )


UNKNOWN = Lineage(b"", ())


def lineage_of(message: JournalIdentity) -> Lineage:
    """Return the lineage that a message holds."""
    epochs = tuple((each.number, each.nonce, each.begin) for each in message.epochs)
    return Lineage(message.incarnation, epochs)


def _epoch(number: int, begin: int) -> Epoch:
    return number, secrets.randbits(NONCE_BITS), begin
