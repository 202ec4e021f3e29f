"""Batches on their way from readers to transactions, bounded in messages and in bytes.

    source a ─► put ─┐                                          one queue a shard
    source b ─► put ─┴─► InputQueue ─► take_or_none ─► transactions
                              └─ Share ─► ReadAhead             one account a member

Sources of one shard share its queue by bytes: of the readers that wait, the one goes first whose source has the fewest
bytes in the queue. So a source of large batches does not crowd out one of small batches, whichever comes first.

A *bound* is set while shards are merged: of each source nothing is taken that begins at an offset or behind, until the
bound is gone. What is held back stays where it is, in the queue or with its reader.

Shards of one member share its memory in equal parts. A slow shard fills its own part and then makes its own readers
wait; what its neighbours may read ahead does not depend on how slow it is, only on how many shards there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from broadsheet.journals.message.batch import MessageBatch

_JOINED_MESSAGES: Final = 16_384
"""Messages up to which batches that wait are joined."""
_JOINED_BYTES: Final = 4 << 20
"""Bytes of journal up to which they are: joining copies them."""


class ReadAhead:
    """The bytes that all shards of a member have read ahead. Lives on the event loop."""

    def __init__(self, bytes_max: int) -> None:
        """Create an account without shares.

        Args:
            bytes_max: Bytes of journal that all shards together may hold, beside one batch of each.
        """
        self.bytes_max = bytes_max
        self.bytes_in_use = 0
        self._shares: dict[Share, str] = {}
        self._tight: set[Share] = set()
        """Shares that were refused because others hold more than their parts, from a time when there were fewer."""

    @contextmanager
    def share(self, shard: str) -> Iterator[Share]:
        """Yield a share for the block; its bytes are free afterwards.

        Args:
            shard: Whose share, for `by_shard`.
        """
        share = Share(self)
        self._shares[share] = shard
        try:
            yield share
        finally:
            del self._shares[share]
            self._tight.discard(share)
            share.give_back(share.bytes_in_use)
            # Every part is larger now.
            for other in tuple(self._shares):
                other.on_room()

    @property
    def part_bytes(self) -> int:
        """Bounds of the content that one shard holds, bytes."""
        return self.bytes_max // max(1, len(self._shares))

    def by_shard(self) -> Mapping[str, int]:
        """Return the bytes that each shard holds. Any thread may ask."""
        # A copy at once, because the event loop goes on meanwhile.
        return {shard: share.bytes_in_use for share, shard in tuple(self._shares.items())}

    def note_tight(self, share: Share) -> None:
        """Call a share back when others give bytes back."""
        self._tight.add(share)

    def call_tight(self, giver: Share) -> None:
        """Call back the shares that were refused because of the others."""
        if not self._tight:
            return
        tight, self._tight = self._tight, set()
        for share in tight - {giver}:
            share.on_room()


class Share:
    """One shard's part of `ReadAhead`."""

    def __init__(self, account: ReadAhead) -> None:
        """Hold nothing; made by `ReadAhead.share`."""
        self.bytes_in_use = 0
        self.on_room: Callable[[], None] = lambda: None
        """Called when there may be room again, other than by our own `give_back`."""
        self._account = account

    def fits(self, size: int) -> bool:
        """Report whether so many bytes more may be held; a share that holds nothing may take anything."""
        account = self._account
        if not self.bytes_in_use:
            return True
        if self.bytes_in_use + size > account.part_bytes:
            return False
        if account.bytes_in_use + size > account.bytes_max:
            account.note_tight(self)
            return False
        return True

    def take(self, size: int) -> None:
        """Hold so many bytes more."""
        self.bytes_in_use += size
        self._account.bytes_in_use += size

    def give_back(self, size: int) -> None:
        """Hold so many bytes less."""
        self.bytes_in_use -= size
        self._account.bytes_in_use -= size
        self._account.call_tight(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBounds:
    """Bounds of one queue."""

    messages_max: int
    """Messages held before readers wait."""
    bytes_max: int
    """Bytes of journal held before readers wait."""
    share: Share | None = None
    """Of the member's memory; None for a queue that is not counted there."""


@dataclass(frozen=True, slots=True, eq=False)
class InputBound:
    """Place at which input ends for a while."""

    through: Mapping[str, int]
    """Nothing is taken that begins there or behind, bytes by journal; of other journals, nothing at all."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all before is taken, and handed to the application."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A reader that waits for room."""

    batch: MessageBatch
    admitted: asyncio.Future[None]


class InputQueue:
    """FIFO queue with one consumer, which is notified of arrivals and of the close."""

    def __init__(
        self,
        bounds: InputBounds,
        *,
        on_ready: Callable[[], None],
        read_through: Mapping[str, int] | None = None,
    ) -> None:
        """Create an empty queue.

        Args:
            bounds: A batch larger than they allow is admitted when the queue is empty.
            on_ready: Called after each arrival, and when the queue is closed.
            read_through: What was read before, bytes by journal.
        """
        self._bounds = bounds
        self._share = bounds.share
        if self._share is not None:
            self._share.on_room = self._admit_waiting
        self._on_ready = on_ready
        self._batches: deque[MessageBatch] = deque()
        self._waiting: list[_Waiting] = []
        """In order of arrival."""
        self._messages = 0
        self._bytes = 0
        self._journal_bytes: Counter[str] = Counter()
        self._closed = False
        self._taken: dict[str, int] = dict(read_through or {})
        """Ends of what was taken, bytes by journal."""
        self.bound: InputBound | None = None
        """Where input ends for now."""

    @property
    def taken_through(self) -> Mapping[str, int]:
        """End of each source's input that was taken, bytes by journal; ends of messages."""
        return self._taken

    @property
    def is_at_bound(self) -> bool:
        """Report whether all before the bound is taken; False without one.

        A source whose next message begins behind it has nothing more before it, though a message that ended there may
        be gone.
        """
        bound = self.bound
        return bound is not None and all(
            self._taken.get(journal, 0) >= through or self._next_begins(journal) >= through
            for journal, through in bound.through.items()
        )

    @property
    def closed(self) -> bool:
        """Report whether batches are dropped."""
        return self._closed

    @property
    def exhausted(self) -> bool:
        """Report whether the queue is closed and empty."""
        return self._closed and not self._batches

    @property
    def is_idle(self) -> bool:
        """Report whether the queue is empty, but not closed. Any thread may ask."""
        return not self._batches and not self._closed

    @property
    def is_behind(self) -> bool:
        """Report whether readers wait for room."""
        return bool(self._waiting)

    async def put(self, batch: MessageBatch) -> None:
        """Add a batch; wait while the queue is full. Once it is closed, batches are dropped."""
        # A batch without messages may still note where its source resumes.
        if self._closed or not (len(batch) or batch.resumes):
            return
        if not self._waiting and self._fits(batch):
            self._add(batch)
            return
        waiting = _Waiting(batch, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._admit_waiting()
        try:
            await waiting.admitted
        finally:
            if waiting in self._waiting:  # Cancelled.
                self._waiting.remove(waiting)
                # It may have been the one whose turn it was.
                self._admit_waiting()

    def close(self) -> None:
        """Close the queue: later batches are dropped, and those of readers that wait."""
        self._closed = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            _wake(each)
        self._on_ready()

    def take_or_none(self) -> MessageBatch | None:
        """Return the oldest batch, joined with those of its journal right after it; None if there is none now.

        Reading is faster than consuming where there is a backlog, and few large runs take less time than many small
        ones. A batch for which nothing waits is taken at once.
        """
        if self.bound is not None:
            return self._take_before(self.bound)
        if not self._batches:
            return None
        parts = [self._batches.popleft()]
        messages, size_bytes = len(parts[0]), _bytes_of(parts[0])
        while self._batches and parts[0].continues_in(self._batches[0]):
            following = self._batches[0]
            if messages + len(following) > _JOINED_MESSAGES:
                break
            if size_bytes + _bytes_of(following) > _JOINED_BYTES:
                break
            parts.append(self._batches.popleft())
            messages += len(following)
            size_bytes += _bytes_of(following)
        self._let_go(parts[0].journal, messages, size_bytes)
        self._note_taken(parts[-1])
        self._admit_waiting()
        return MessageBatch.joined(parts)

    def _take_before(self, bound: InputBound) -> MessageBatch | None:
        """Return the oldest input that is before a bound: of a batch that waits in the queue, else of a reader's.

        A reader's, too, because what is held back may leave no room for what must still come.
        """
        for at, batch in enumerate(self._batches):
            part = _before(batch, bound)
            if part is None:
                continue
            if len(part) == len(batch):
                del self._batches[at]
            else:
                self._batches[at] = batch.span(len(part), len(batch))
            # What is left is smaller by the whole part, also if frames between the two belong to neither.
            left = _bytes_of(batch) - (
                0 if len(part) == len(batch) else _bytes_of(self._batches[at])
            )
            self._let_go(part.journal, len(part), left)
            self._note_taken(part)
            self._admit_waiting()
            return part
        for at, waiting in enumerate(self._waiting):
            part = _before(waiting.batch, bound)
            if part is None:
                continue
            if len(part) == len(waiting.batch):
                del self._waiting[at]
                _wake(waiting)
            else:
                waiting.batch = waiting.batch.span(len(part), len(waiting.batch))
            self._note_taken(part)
            return part
        return None

    def _next_begins(self, journal: str) -> int:
        """Return where the next message of a journal begins; before all offsets if none is here."""
        held = [*self._batches, *(each.batch for each in self._waiting)]
        return next(
            (int(each.begins[0]) for each in held if each.journal == journal and len(each)), -1
        )

    def _note_taken(self, batch: MessageBatch) -> None:
        if len(batch):
            taken = self._taken.get(batch.journal, 0)
            self._taken[batch.journal] = max(taken, int(batch.ends[-1]))

    def _let_go(self, journal: str, messages: int, size_bytes: int) -> None:
        self._messages -= messages
        self._bytes -= size_bytes
        self._journal_bytes[journal] -= size_bytes
        if self._share is not None:
            self._share.give_back(size_bytes)

    def _admit_waiting(self) -> None:
        """Admit readers that wait, those of the sources with the fewest bytes here first, as long as they fit.

        None goes ahead of the one whose turn it is, or a large batch might wait for ever.
        """
        while self._waiting:
            following = min(self._waiting, key=lambda each: self._journal_bytes[each.batch.journal])
            if not self._fits(following.batch):
                return
            self._waiting.remove(following)
            self._add(following.batch)
            _wake(following)

    def _add(self, batch: MessageBatch) -> None:
        size = _bytes_of(batch)
        self._batches.append(batch)
        self._messages += len(batch)
        self._bytes += size
        self._journal_bytes[batch.journal] += size
        if self._share is not None:
            self._share.take(size)
        self._on_ready()

    def _fits(self, batch: MessageBatch) -> bool:
        if not self._batches:
            return True
        size, bounds = _bytes_of(batch), self._bounds
        return (
            self._messages + len(batch) <= bounds.messages_max
            and self._bytes + size <= bounds.bytes_max
            and (self._share is None or self._share.fits(size))
        )


def _before(batch: MessageBatch, bound: InputBound) -> MessageBatch | None:
    """Return the messages of a batch that begin before a bound; None if there are none."""
    through = bound.through.get(batch.journal, 0)
    count = int(batch.begins.searchsorted(through))
    if count == 0:
        return None
    return batch if count == len(batch) else batch.span(0, count)


def _wake(waiting: _Waiting) -> None:
    if not waiting.admitted.done():
        waiting.admitted.set_result(None)


def _bytes_of(batch: MessageBatch) -> int:
    """Return the range of the journal that a batch spans, bytes: no less than its frames."""
    return int(batch.ends[-1] - batch.begins[0]) if len(batch) else 0
