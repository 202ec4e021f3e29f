"""Producers of a journal whose transactions are neither acknowledged nor rolled back. Pure.

Only what is read is known: a transaction that began before the first batch, and of which nothing was read, is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags, unix_seconds_of


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is neither acknowledged nor rolled back."""

    producer: int
    """48 bits."""
    begin: int
    """Offset of its first message, bytes."""
    first_clock: int
    """Clock of its first message."""
    last_clock: int
    """Clock of its last message that was read."""

    @property
    def began_unix_seconds(self) -> float:
        """By the producer's clock."""
        return unix_seconds_of(self.first_clock)

    @property
    def latest_unix_seconds(self) -> float:
        """When its last message was published, by the producer's clock."""
        return unix_seconds_of(self.last_clock)


class OpenTransactions:
    """Follows the messages of one journal, in the order in which they were written."""

    def __init__(self) -> None:
        """Know of no producer."""
        self._open: dict[int, OpenTransaction] = {}
        self._settled: dict[int, int] = {}
        """Clock by producer up to which all is acknowledged, rolled back, or committed by itself."""

    def since(self, unix_seconds: float) -> list[OpenTransaction]:
        """Return those that began at a time or later, by their begins."""
        found = [each for each in self._open.values() if each.began_unix_seconds >= unix_seconds]
        return sorted(found, key=lambda each: each.begin)

    def behind(self) -> FreshMessages:
        """Return what follows the messages behind those that were read, which are few."""
        return FreshMessages(dict(self._settled))

    def read(self, batch: MessageBatch) -> None:
        """Take the next messages."""
        for producer in np.unique(batch.producers).tolist():
            if producer:  # 0: the message has no UUID, and is in no transaction.
                self._read_producer(producer, batch)

    def _read_producer(self, producer: int, batch: MessageBatch) -> None:
        places = np.flatnonzero(batch.producers == producer)
        flags, clocks = batch.flags[places], batch.clocks[places]
        ends = np.flatnonzero(flags != Flags.CONTINUE_TXN)
        if len(ends):
            last = int(ends[-1])
            self._open.pop(producer, None)
            self._settled[producer] = max(
                self._settled.get(producer, 0), int(clocks[ends].max(initial=0))
            )
            places, clocks = places[last + 1 :], clocks[last + 1 :]
        # Copies of what was acknowledged begin no transaction.
        fresh = np.flatnonzero(clocks > self._settled.get(producer, 0))
        if not len(fresh):
            return
        last_clock = int(clocks[fresh].max())
        known = self._open.get(producer)
        if known is not None:
            self._open[producer] = replace(known, last_clock=max(known.last_clock, last_clock))
            return
        first = int(places[fresh[0]])
        self._open[producer] = OpenTransaction(
            producer, int(batch.begins[first]), int(batch.clocks[first]), last_clock
        )


class FreshMessages:
    """Follows messages behind a place of a journal, and tells those that are no copies of what is before it.

    Implements what a reader does: what is rolled back is never shown, nor what is open as long as it is.
    """

    def __init__(self, settled: dict[int, int]) -> None:
        """Know of nothing behind the place.

        Args:
            settled: Clock by producer up to which all before the place is acknowledged, rolled back, or committed.
        """
        self._settled = settled
        self.open: dict[int, tuple[int, int]] = {}
        """By producer: offset and clock of its first fresh message that is neither acknowledged nor rolled back."""

    def read(self, batch: MessageBatch) -> tuple[int, int] | None:
        """Take the next messages; return producer and offset of the first fresh one that readers show, if any."""
        rows = zip(
            batch.producers.tolist(),
            batch.clocks.tolist(),
            batch.flags.tolist(),
            batch.begins.tolist(),
            strict=True,
        )
        for producer, clock, flags, begin in rows:
            if producer == 0:  # It has no UUID, so every reader takes it for a message of its own.
                return producer, begin
            if flags == Flags.CONTINUE_TXN:
                if clock > self._settled.get(producer, 0):
                    self.open.setdefault(producer, (begin, clock))
                continue
            opened = self.open.pop(producer, None)
            if opened is not None and clock >= opened[1]:
                return producer, opened[0]
            if flags == Flags.OUTSIDE_TXN and clock > self._settled.get(producer, 0):
                return producer, begin
            self._settled[producer] = max(self._settled.get(producer, 0), clock)
        return None
