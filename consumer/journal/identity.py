"""Whether an offset that was remembered still means the same content: pure.

    epoch not known (Gazette's brokers, checkpoints of before)     only the write head can contradict the offset
    another incarnation                                            the journal was deleted, or lost, and made again
    an earlier epoch of this incarnation, and the offset is beyond what later ones kept of it
                                                                   what was read is gone, and other bytes are there now
    an epoch that this incarnation never had                       the journal is an older copy, or went its own way

Source: KIP-101, KIP-320 (truncation is detected by epoch and offset).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from consumer.protocol.identity_pb2 import JournalEpoch, JournalIdentity

_SHOWN_DIGITS = 8


class Standing(Enum):
    """What an offset that was remembered is worth."""

    SAME = "same"
    """The content below it is what was read."""
    BEHIND = "behind"
    """The write head is below it: a replica that lags, a journal that is being recovered, or one that lost its end."""
    REPLACED = "replaced"
    """Other content is there now than was read."""


@dataclass(frozen=True, slots=True)
class Present:
    """What a broker says of a journal now."""

    write_head: int
    """Bytes."""
    identity: JournalIdentity | None
    """None if the broker tells none."""

    @property
    def epoch(self) -> JournalEpoch | None:
        """The present epoch, to be remembered beside offsets."""
        return None if self.identity is None else present_epoch(self.identity)


def present_epoch(identity: JournalIdentity) -> JournalEpoch | None:
    """Return the epoch that an identity ends in; None if it has none."""
    if not identity.epochs:
        return None
    last = identity.epochs[-1]
    return JournalEpoch(incarnation=identity.incarnation, number=last.number, nonce=last.nonce)


def standing(offset: int, epoch: JournalEpoch | None, present: Present) -> Standing:
    """Judge an offset below which a journal was read.

    Args:
        offset: Bytes; 0 is of any journal.
        epoch: In which it was read; None if that is not known.
        present: What the broker says now.
    """
    if offset <= 0:
        return Standing.SAME
    if epoch is not None and present.identity is not None and present.identity.epochs:
        limit = shared_end(epoch, present.identity)
        if limit is not None and offset > limit:
            return Standing.REPLACED
    return Standing.BEHIND if offset > present.write_head else Standing.SAME


def shared_end(epoch: JournalEpoch, identity: JournalIdentity) -> int | None:
    """Return up to where the content of an epoch is still there, bytes; None if it is the present one: to its end."""
    if epoch.incarnation != identity.incarnation:
        return 0
    listed = {each.number: each.nonce for each in identity.epochs}
    oldest = min(listed)
    if epoch.number >= oldest and listed.get(epoch.number) != epoch.nonce:
        # It was never one of this copy's: they share only what is older than both, which nobody can tell.
        return 0
    later = [each.begin for each in identity.epochs if each.number > epoch.number]
    return min(later, default=None)


def epoch_text(epoch: JournalEpoch | None) -> str:
    """Return an epoch for people, e.g. `3fa94c01/2`."""
    if epoch is None or not epoch.incarnation:
        return "unknown"
    return f"{epoch.incarnation.hex()[:_SHOWN_DIGITS]}/{epoch.number}"
