"""Guard of a read that continues from a remembered offset, against a replaced or truncated journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from broadsheet.journals.errors import JournalReplacedError
from broadsheet.wire.identity_pb2 import JournalEpoch, JournalIdentity

BROKER_LEASE_SECONDS = 20.0
"""Time for which a crashed broker of Gazette keeps its replicas: the usual lifetime of its lease in etcd."""
HEAD_PATIENCE_SECONDS = 2 * BROKER_LEASE_SECONDS
"""Time for which a write head may be below what was read before the journal counts as truncated. A replica that was
just assigned shows an old head until an append reaches it, which takes as long as the journal lacks brokers: a lease,
and then about as long again for the assignment of another broker, its index, and the next append.
"""
HEAD_DOUBT_SECONDS = 5.0
"""The same where all replicas together can be asked (`AgreedHead`): a short lag is not worth an append."""

AgreedHead: TypeAlias = "Callable[[], Awaitable[int | None]]"
"""Returns the write head on which all replicas of a journal agree, bytes; None if that cannot be told now."""

_SHOWN_DIGITS = 8


class RememberedOffset(Enum):
    """Validity of a remembered offset."""

    SAME = "same"
    """The content below it is what was read."""
    BEHIND = "behind"
    """The write head is below it: a lagging replica, a journal that is being recovered, or one that lost its end."""
    REPLACED = "replaced"
    """The content there now is not what was read."""


@dataclass(frozen=True, slots=True)
class Present:
    """Present state of a journal, as told by a broker."""

    write_head: int
    """Write head, bytes."""
    identity: JournalIdentity | None
    """None if the broker does not tell it."""

    @property
    def epoch(self) -> JournalEpoch | None:
        """The present epoch, to be stored with offsets."""
        return None if self.identity is None else present_epoch(self.identity)


def present_epoch(identity: JournalIdentity) -> JournalEpoch | None:
    """Return the last epoch of an identity; None if it has none."""
    if not identity.epochs:
        return None
    last = identity.epochs[-1]
    return JournalEpoch(incarnation=identity.incarnation, number=last.number, nonce=last.nonce)


def standing(offset: int, epoch: JournalEpoch | None, present: Present) -> RememberedOffset:
    """Judge an offset below which a journal was read. Pure.

    - Its epoch is not known (Gazette's brokers, earlier checkpoints): only the write head can contradict the offset.
    - Another incarnation: the journal was deleted, or lost, and created again.
    - An earlier epoch of this incarnation, and the offset is beyond what later ones kept of it: what was read is gone,
      and other bytes are there now.
    - An epoch that this incarnation never had: the journal is an older copy, or has diverged.

    Source: KIP-101, KIP-320 (truncation is detected by epoch and offset).

    Args:
        offset: Bytes; 0 is of any journal.
        epoch: In which it was read; None if that is not known.
        present: What the broker says now.
    """
    # Nothing was read below the beginning, so any journal fits.
    if offset <= 0:
        return RememberedOffset.SAME
    if epoch is not None and present.identity is not None and present.identity.epochs:
        limit = shared_end(epoch, present.identity)
        if limit is not None and offset > limit:
            return RememberedOffset.REPLACED
    return RememberedOffset.BEHIND if offset > present.write_head else RememberedOffset.SAME


def shared_end(epoch: JournalEpoch, identity: JournalIdentity) -> int | None:
    """Return the offset up to which an epoch's content still exists, bytes; None if it is the present epoch."""
    if epoch.incarnation != identity.incarnation:
        return 0
    listed = {each.number: each.nonce for each in identity.epochs}
    oldest = min(listed)
    if epoch.number >= oldest and listed.get(epoch.number) != epoch.nonce:
        # This copy never had the epoch. They share only what is older than both, whose extent is
        # unknown.
        return 0
    later = [each.begin for each in identity.epochs if each.number > epoch.number]
    return min(later, default=None)


def epoch_text(epoch: JournalEpoch | None) -> str:
    """Return an epoch for people, e.g. `3fa94c01/2`."""
    if epoch is None or not epoch.incarnation:
        return "unknown"
    return f"{epoch.incarnation.hex()[:_SHOWN_DIGITS]}/{epoch.number}"


@dataclass(frozen=True, slots=True)
class RememberedRead:
    """An earlier read of a journal, from which another one continues."""

    journal: str
    """Named in errors."""
    epoch: JournalEpoch | None
    """In which was read what is below the reader's offset; None: not known, so that only the write head can contradict
    the offset."""
    read_through: int = 0
    """Everything below it was read when `epoch` was remembered, bytes."""
    starts_at: int = 0
    """Where reading begins, bytes; above `read_through`, it skips content that was not read."""


class OffsetGuard:
    """Knowledge of the journal that one reader has read so far. Used by one reader at a time."""

    def __init__(
        self,
        remembered: RememberedRead,
        *,
        patience_seconds: float = HEAD_PATIENCE_SECONDS,
        on_epoch: Callable[[JournalEpoch], None] = lambda _: None,
        on_head: Callable[[int], None] = lambda _: None,
        agreed_head: AgreedHead | None = None,
    ) -> None:
        """Begin with the remembered epoch.

        Args:
            remembered: The read that this one continues.
            patience_seconds: How long the write head may be below the offset.
            on_epoch: Told the epoch of what is read from now on, at the beginning and whenever it is another.
            on_head: Told the write head in each answer, bytes.
            agreed_head: Asked before a write head that was below for too long ends the read; absent where the reader
                may not append.
        """
        self._journal = remembered.journal
        self._epoch = remembered.epoch
        self._read_through = remembered.read_through
        self._starts_at = remembered.starts_at
        self._patience_seconds = patience_seconds
        self._on_epoch = on_epoch
        self.on_head = on_head
        """Told the write head in each answer, bytes."""
        self._agreed_head = agreed_head
        self._behind_since: float | None = None
        self.looked = False
        """True if the journal was found unchanged since its last read ended."""

    def look(self, present: Present, now: float, *, offset: int | None = None) -> bool:
        """Judge an offset before a read begins there.

        Returns False if the head is below it, in which case it may be asked again.

        Args:
            present: What the broker says.
            now: Monotonic seconds.
            offset: Where the read begins, bytes; where the first one does, if not given.

        Raises:
            JournalReplacedError: the journal holds other content, or its head has been below for too long.
        """
        offset = self._read_below(self._starts_at if offset is None else offset)
        found = standing(offset, self._epoch, present)
        if found is RememberedOffset.SAME:
            self._behind_since = None
            self.looked = True
            self._note(present.epoch)
            return True
        if found is RememberedOffset.BEHIND:
            if self._behind_since is None:
                self._behind_since = now
            if now - self._behind_since < self._patience_seconds:
                return False
        else:
            self._behind_since = None
        raise self._error(offset, present)

    async def is_refuted(self, error: JournalReplacedError) -> bool:
        """Return whether the write head that `look` raised for was that of one replica, and not the journal's.

        The journal's is at least what was read, or cannot be told now; then the patience begins again.
        """
        # Only a head is one replica's view. An epoch is the journal's, whichever replica tells it.
        if self._agreed_head is None or self._behind_since is None:
            return False
        head = await self._agreed_head()
        if head is not None and head < error.offset:
            return False
        self._behind_since = None
        return True

    def on_answer(self, offset: int, identity: JournalIdentity, write_head: int) -> None:
        """Judge an offset by the first answer of the read that began there.

        Raises:
            JournalReplacedError: the journal was replaced between the look and the read.
        """
        offset, present = self._read_below(offset), Present(write_head, identity)
        if standing(offset, self._epoch, present) is RememberedOffset.REPLACED:
            raise self._error(offset, present)
        self._note(present_epoch(identity))

    def _read_below(self, offset: int) -> int:
        """Return the offset up to which the journal was really read by a reader at this offset, bytes."""
        return offset if offset > self._starts_at else min(offset, self._read_through)

    def _note(self, epoch: JournalEpoch | None) -> None:
        """Remember the present epoch, because it includes the content read before."""
        if epoch is not None and epoch != self._epoch:
            self._epoch = epoch
            self._on_epoch(epoch)

    def _error(self, offset: int, present: Present) -> JournalReplacedError:
        return JournalReplacedError(
            self._journal,
            offset=offset,
            write_head=present.write_head,
            read_epoch=epoch_text(self._epoch),
            present_epoch=epoch_text(present.epoch),
        )
