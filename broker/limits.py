"""Current use of a broker's bounds, and the choice of requests to refuse or cut off at a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Protocol, TypeVar

from broadsheet.broker.config import BrokerBounds
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.event_loop import Signal
from broadsheet.serving.places import Places, option_of

CHUNK_BYTES_LEAST = 16 << 10
"""Content of one message to a reader while readers are at their bound."""
STALLED_SECONDS = 1.0
"""A reader that takes nothing for this long is stalled; it is cut off only if others need the bytes."""


class Level:
    """Number of bytes held; above the bound, users are expected to slow down."""

    def __init__(self, bounds: BrokerBounds, name: str) -> None:
        self.name = name
        self.bound: int = getattr(bounds, name)
        self.in_use = self.peak = 0
        self.refused = 0
        """Number of requests refused or streams cut off at this bound since the start."""
        self.fell = Signal()
        """Notified when bytes are given back."""

    @property
    def is_over(self) -> bool:
        """True if more bytes are held than the bound."""
        return self.in_use > self.bound

    def take(self, length: int) -> None:
        """Count bytes as held."""
        self.in_use += length
        self.peak = max(self.peak, self.in_use)

    def take_peak(self) -> int:
        """Return the most bytes that were held since the last call."""
        peak, self.peak = self.peak, self.in_use
        return peak

    def give_back(self, length: int) -> None:
        """Count bytes as free."""
        if length:
            self.in_use -= length
            self.fell.notify()


class CountedReader:
    """Account of the bytes that one reader holds."""

    def __init__(self, readers: ReaderBytes, cut_off: Callable[[], None]) -> None:
        self._readers = readers
        self._cut_off = cut_off
        self.held = 0
        """Bytes read for it that are not yet sent."""
        self.silent_since: float | None = None
        """Time when the present write began, monotonic seconds."""
        self.in_writing = 0
        """Bytes of that write."""
        self.is_cut_off = False

    def take(self, wanted: int) -> int:
        """Count bytes as held and return how many: all that are wanted if there is room, else a few."""
        length = self._readers.granted(wanted)
        self._hold(length)
        return length

    def take_ahead(self, wanted: int) -> int:
        """Same as `take`, for bytes read ahead of sending: none unless there is room for all."""
        if wanted > self._readers.room:
            return 0
        self._hold(wanted)
        return wanted

    def _hold(self, length: int) -> None:
        self.held += length
        self._readers.level.take(length)

    def give_back(self, length: int) -> None:
        """Count bytes as free."""
        self.held -= length
        self._readers.level.give_back(length)

    def cut_off(self) -> None:
        """End the reader's stream."""
        self.is_cut_off = True
        self._cut_off()

    @contextmanager
    def sending(self, counted: int) -> Iterator[None]:
        """Record a write of held bytes, which are free after it. gRPC keeps the bytes of a write that fails."""
        self.silent_since, self.in_writing = self._readers.now(), counted
        # Not in a `finally`, because the bytes of a failed write are free only when the call ends.
        yield
        self.silent_since, self.in_writing = None, 0
        self._readers.sent_bytes += counted
        self.give_back(counted)


class ReaderBytes:
    """Content on its way to all readers."""

    def __init__(self, bounds: BrokerBounds, clock: Clock) -> None:
        self.level = Level(bounds, "readers_bytes_max")
        self.now = clock.monotonic_seconds
        self.sent_bytes = 0
        """Content that was sent since the start."""
        self._readers: set[CountedReader] = set()

    @property
    def room(self) -> int:
        """Number of bytes below the bound; negative above it."""
        return self.level.bound - self.level.in_use

    def open(self, cut_off: Callable[[], None]) -> CountedReader:
        """Return the account of a new reader."""
        reader = CountedReader(self, cut_off)
        self._readers.add(reader)
        return reader

    def end(self, reader: CountedReader) -> None:
        """Remove a reader that has ended by itself, so that it is not cut off."""
        self._readers.discard(reader)

    def granted(self, wanted: int) -> int:
        """Return how many of the wanted bytes a reader may take; if not all, end stalled readers."""
        missing = wanted - self.room
        if missing <= 0:
            return wanted
        for reader in stalled(self._readers, missing, self.now() - STALLED_SECONDS):
            self.level.refused += 1
            reader.cut_off()
        # A little is always granted, so that every reader goes on.
        return min(wanted, CHUNK_BYTES_LEAST)


class Holder(Protocol):
    """A stream that holds bytes for as long as its peer takes nothing."""

    held: int
    silent_since: float | None
    is_cut_off: bool


H = TypeVar("H", bound=Holder)


def stalled(holders: Collection[H], missing: int, silent_since: float) -> list[H]:
    """Return the streams to end, the longest silent first, until together they hold the missing bytes.

    Args:
        holders: All of them.
        missing: Bytes that are needed.
        silent_since: A write under way for longer, since this time, is a stall, monotonic seconds.
    """
    waiting = [
        each
        for each in holders
        if each.silent_since is not None
        and each.silent_since <= silent_since
        and not each.is_cut_off
    ]
    ended: list[H] = []
    for each in sorted(waiting, key=lambda each: each.silent_since or 0.0):
        if missing <= 0:
            break
        missing -= each.held
        ended.append(each)
    return ended


class Refusals:
    """Counts of requests refused for their size or form, and of appends cut off for others of their journal."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Refusals by bound, since the start."""

    def require(self, value: int, bounds: BrokerBounds, name: str, field_path: str) -> None:
        """Check one number of a request.

        Raises:
            ValidationError: it is above the bound.
        """
        bound: int = getattr(bounds, name)
        if value > bound:
            self.counts[name] += 1
            raise ValidationError(
                field_path, f"expected {bound} at most ({option_of(name)}), got {value}"
            )


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """All bounded quantities of a broker."""

    bounds: BrokerBounds
    calls: Places
    calls_of_hosts: Places
    public_calls: Places
    append_streams: Places
    readers: Places
    append_bytes: Level
    reader_bytes: ReaderBytes
    refusals: Refusals

    @staticmethod
    def of(bounds: BrokerBounds, clock: Clock) -> BrokerLimits:
        """Return limits with nothing in use."""
        return BrokerLimits(
            bounds,
            Places(bounds, "calls_max", "calls_per_connection_max", server="the broker"),
            Places(bounds, "calls_max", "calls_per_host_max", server="the broker"),
            Places(
                bounds, "public_calls_max", "public_calls_per_connection_max", server="the broker"
            ),
            Places(
                bounds,
                "append_streams_max",
                "append_streams_per_connection_max",
                server="the broker",
            ),
            Places(bounds, "readers_max", "readers_per_journal_max", server="the broker"),
            Level(bounds, "append_streams_bytes_max"),
            ReaderBytes(bounds, clock),
            Refusals(),
        )

    def in_use(self) -> dict[str, int]:
        """Return what is held of each bound of calls, streams, reads and bytes."""
        held = (self.calls, self.public_calls, self.append_streams, self.readers)
        levels = (self.append_bytes, self.reader_bytes.level)
        return {each.name: each.in_use for each in (*held, *levels)}

    def refused(self) -> Counter[str]:
        """Return the number refused or cut off since the start, for every bound."""
        counts: Counter[str] = Counter({each.name: 0 for each in fields(self.bounds)})
        for places in (self.calls, self.public_calls, self.append_streams, self.readers):
            counts.update(places.refused)
        each = self.calls_of_hosts.each
        counts[each] += self.calls_of_hosts.refused[each]
        for level in (self.append_bytes, self.reader_bytes.level):
            counts[level.name] += level.refused
        counts.update(self.refusals.counts)
        return counts

    def take_peak_bytes(self) -> int:
        """Return the most bytes held since the last call, by append streams and readers."""
        return sum(level.take_peak() for level in (self.append_bytes, self.reader_bytes.level))
