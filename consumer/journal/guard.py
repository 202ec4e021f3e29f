"""Guards a read that goes on from a remembered offset: against a journal that is another one now, or went back."""

from __future__ import annotations

from collections.abc import Callable

from consumer.errors import JournalReplacedError
from consumer.journal.identity import Present, Standing, epoch_text, present_epoch, standing
from consumer.protocol.identity_pb2 import JournalEpoch, JournalIdentity

HEAD_PATIENCE_SECONDS = 5.0
"""How long a write head may be below what was read before it counts as gone back: replicas of Gazette's brokers lag by
what one of them has not yet seen, a second or so."""


class OffsetGuard:
    """What is known of the journal that a reader has read so far. Of one reader at a time."""

    def __init__(
        self,
        journal: str,
        epoch: JournalEpoch | None,
        *,
        read_through: int = 0,
        starts_at: int = 0,
        patience_seconds: float = HEAD_PATIENCE_SECONDS,
        on_epoch: Callable[[JournalEpoch], None] = lambda _: None,
    ) -> None:
        """Begin with what was remembered.

        Args:
            journal: Named in errors.
            epoch: In which was read what is below the reader's offset; None: not known, so that only the write head can
                contradict the offset.
            read_through: Everything below it was read when `epoch` was remembered, bytes.
            starts_at: Where reading begins, bytes; above `read_through`, it passes over what nobody has read.
            patience_seconds: How long the write head may be below the offset.
            on_epoch: Told the epoch of what is read from now on, at the beginning and whenever it is another.
        """
        self._journal = journal
        self._epoch = epoch
        self._read_through = read_through
        self._starts_at = starts_at
        self._patience_seconds = patience_seconds
        self._on_epoch = on_epoch
        self._behind_since: float | None = None
        self.looked = False
        """Whether the journal was found to be the same since the last read of it ended."""

    def look(self, present: Present, now: float, *, offset: int | None = None) -> bool:
        """Judge an offset before a read begins there; False if the head is below it, so that it may be asked again.

        Args:
            present: What the broker says.
            now: Monotonic seconds.
            offset: Where the read begins, bytes; where the first one does, if not given.

        Raises:
            JournalReplacedError: the journal holds other content, or its head has been below for too long.
        """
        offset = self._read_below(self._starts_at if offset is None else offset)
        found = standing(offset, self._epoch, present)
        if found is Standing.SAME:
            self._behind_since = None
            self.looked = True
            self._note(present.epoch)
            return True
        if found is Standing.BEHIND:
            if self._behind_since is None:
                self._behind_since = now
            if now - self._behind_since < self._patience_seconds:
                return False
        raise self._error(offset, present)

    def on_answer(self, offset: int, identity: JournalIdentity, write_head: int) -> None:
        """Judge an offset by the first answer of the read that began there.

        Raises:
            JournalReplacedError: the journal was replaced between the look and the read.
        """
        offset, present = self._read_below(offset), Present(write_head, identity)
        if standing(offset, self._epoch, present) is Standing.REPLACED:
            raise self._error(offset, present)
        self._note(present_epoch(identity))

    def _read_below(self, offset: int) -> int:
        """Return up to where the journal was really read by a reader that is at an offset, bytes."""
        return offset if offset > self._starts_at else min(offset, self._read_through)

    def _note(self, epoch: JournalEpoch | None) -> None:
        """Remember the present epoch: what was read before is content of it, too."""
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
