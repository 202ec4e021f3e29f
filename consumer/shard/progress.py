"""Progress of one attempt: offsets that requests wait for, and counters for metrics and the stall detector."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, count

import structlog

from broadsheet.consumer.application import Shard
from broadsheet.consumer.shard import transaction_events as tx
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.journals.message.sequence_rules import SequenceOutcome

_log = structlog.get_logger()

ACKNOWLEDGED = "acknowledged"
"""To be told: the restored checkpoint's acknowledgements were written again."""
UNDONE = "undone"
"""To be told: what former producers left is rolled back, and it is known where their messages end."""

_WORTH_KNOWING = {
    SequenceOutcome.UNKNOWN_FLAGS: "sequencer.unknown_flags",
    SequenceOutcome.SPAN_DISCARDED: "sequencer.span_discarded",
    SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS: "sequencer.producer_lost_progress",
}
"""What an operator should know of messages that were read, and the event that tells it: one a batch at most."""


class Progress:
    """Offsets read and published by completed transactions; lives on the event loop."""

    def __init__(self, journals: Iterable[str], *, awaits: Iterable[str] = ()) -> None:
        """Start at offset 0 of each of `journals`.

        Args:
            journals: The sources.
            awaits: What must be `told` before a waiter is let through. Until then we do not know where all messages
                published for the offsets read end, and a reader that follows them downstream would miss some.
        """
        self._read_through = dict.fromkeys(journals, 0)
        self._awaits = set(awaits)
        self._publish_at: dict[str, int] = {}
        self._waiting: dict[str, list[_Waiter]] = {}
        """Heaps of requests by journal, the least offset first: a transaction wakes those that it satisfies, however
        many others wait.
        """
        self._held: list[_Waiter] = []
        """Requests that wait for what is to be told."""
        self._ending: asyncio.Future[BaseException | None] | None = None
        """The end of the attempt, once a request waits."""
        self._order = count()
        self._cancelled: Counter[str | None] = Counter()
        """Requests that gave up since the last clean-up, by journal; None: of those held."""

    def copies(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (read_through, publish_at), bytes by journal."""
        return dict(self._read_through), dict(self._publish_at)

    def update(self, read_through: Mapping[str, int], publish_at: Mapping[str, int]) -> None:
        """Adopt newer offsets, and wake waiting requests. No offset decreases.

        A checkpoint restored in place may lag behind reported offsets: duplicates read after it are in no checkpoint.
        """
        _advance(self._read_through, read_through)
        _advance(self._publish_at, publish_at)
        for journal in read_through:
            heap = self._waiting.get(journal)
            if heap is None:
                continue
            while heap and heap[0].offset <= self._read_through[journal]:
                heappop(heap).wake(reached=True)
            if not heap:
                del self._waiting[journal]
                self._cancelled.pop(journal, None)

    def told(self, what: str) -> None:
        """Record that an awaited fact is known. Idempotent."""
        self._awaits.discard(what)
        if not self._awaits:
            held, self._held = self._held, []
            for waiter in held:
                waiter.wake(reached=True)

    def has_read(self, offsets: Mapping[str, int]) -> bool:
        """Return whether all of `offsets` were read through; an unread journal counts as 0."""
        return all(
            self._read_through.get(journal, 0) >= offset for journal, offset in offsets.items()
        )

    async def wait_for(
        self, offsets: Mapping[str, int], *, ended: asyncio.Future[BaseException | None]
    ) -> bool:
        """Wait until all of `offsets` were read through; False if `ended` resolved first.

        `copies` then includes the ends of all messages published from them, by this process or another.
        """
        while offsets and (self._awaits or not self.has_read(offsets)):
            if ended.done() or not await self._next_step(offsets, ended):
                return False
        return True

    async def _next_step(
        self, offsets: Mapping[str, int], ended: asyncio.Future[BaseException | None]
    ) -> bool:
        """Wait for one of the things that a request still lacks; False if the attempt ended."""
        if self._ending is not ended:
            self._ending = ended
            # Once for all requests: a future looks through all of its callbacks to remove one.
            ended.add_done_callback(self._end)
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._awaits:
            lacking = None
            self._held.append(_Waiter(0, next(self._order), reached))
        else:
            lacking = next(
                journal
                for journal, offset in offsets.items()
                if self._read_through.get(journal, 0) < offset
            )
            heap = self._waiting.setdefault(lacking, [])
            heappush(heap, _Waiter(offsets[lacking], next(self._order), reached))
        try:
            return await reached
        except asyncio.CancelledError:
            self._drop_cancelled(lacking)
            raise

    def _drop_cancelled(self, journal: str | None) -> None:
        """Forget requests that gave up, when it costs no more than they did."""
        waiting = self._held if journal is None else self._waiting.get(journal, [])
        # Of this journal alone: requests that give up elsewhere say nothing about what is left here.
        self._cancelled[journal] += 1
        if self._cancelled[journal] * 2 < len(waiting):
            return
        del self._cancelled[journal]
        # In place: requests that still wait know their list.
        waiting[:] = [waiter for waiter in waiting if not waiter.reached.done()]
        heapify(waiting)
        if journal is not None and not waiting:
            self._waiting.pop(journal, None)

    def _end(self, _: object) -> None:
        """Wake all requests, because the attempt has ended."""
        waiting = [*self._held, *chain.from_iterable(self._waiting.values())]
        self._held = []
        self._waiting.clear()
        for waiter in waiting:
            waiter.wake(reached=False)


@dataclass(frozen=True, slots=True, order=True)
class _Waiter:
    """A request that waits for an offset."""

    offset: int
    order: int
    """Of arrival, so that no two are equal."""
    reached: asyncio.Future[bool] = field(compare=False)

    def wake(self, *, reached: bool) -> None:
        """Let the request go on, unless it gave up."""
        if not self.reached.done():
            self.reached.set_result(reached)


def _advance(offsets: dict[str, int], newer: Mapping[str, int]) -> None:
    for journal, offset in newer.items():
        offsets[journal] = max(offset, offsets.get(journal, 0))


class AttemptCounters:
    """Counters of one attempt; implements `broadsheet.consumer.shard.transaction_loop.TxnObserver`."""

    def __init__(self, shard: Shard, progress: Progress, metrics: ShardMetrics) -> None:
        self._id, self._fqn = shard.id, shard.fqn
        self._progress = progress
        self._metrics = metrics
        self.sequenced_to: dict[str, int] = {}
        """Offsets read and sequenced, bytes by journal."""
        self.consumed_bytes = 0
        """Of journals, by completed transactions."""
        self.transactions = 0
        """Completed."""
        self.checkpointed: Mapping[str, int] = {}
        """Offsets that the last committed checkpoint has read, bytes by journal."""
        self.first_committed = asyncio.Event()
        """Set once a transaction of this attempt is complete."""
        self.held = asyncio.Event()
        """Set once transactions rest because a hold was asked for."""

    def on_achieved(
        self, achieved: tx.PublishProgress | tx.RecordTxn | tx.RecordCheckpoint
    ) -> None:
        """Record the progress of transactions."""
        metrics, fqn = self._metrics, self._fqn
        if isinstance(achieved, tx.RecordCheckpoint):
            metrics.record_checkpoint(fqn, achieved)
            if achieved.evicted:
                _log.warning(
                    "sequencer.producers_evicted",
                    shard=self._id,
                    evicted=achieved.evicted,
                    known=achieved.producers.known,
                    action="look for who makes new producers, or raise producers_bytes_max: "
                    "what an evicted one repeats counts a second time",
                )
            return
        if isinstance(achieved, tx.RecordTxn):
            metrics.record_txn(fqn, achieved)
            self.consumed_bytes += achieved.message_bytes
            self.transactions += 1
            self.first_committed.set()
            return
        if achieved.checkpointed is not None:
            self.checkpointed = achieved.checkpointed
        self._progress.update(achieved.read_through, achieved.publish_at)
        self._progress.told(ACKNOWLEDGED)
        metrics.record_read_through(fqn, achieved.read_through)

    def on_sequenced(self, record: tx.RecordSequenced) -> None:
        """Count the messages that were read, and log what an operator should know."""
        self._metrics.record_sequenced(record)
        self.sequenced_to[record.journal] = record.end
        for outcome, text in _WORTH_KNOWING.items():
            messages = record.outcomes.get(outcome, 0)
            if messages:
                _log.warning(
                    text,
                    shard=self._id,
                    journal=record.journal,
                    messages=messages,
                    begin=record.begin,
                    end=record.end,
                )

    def on_held(self) -> None:
        """Tell that transactions rest."""
        self.held.set()

    def on_replayed(self, journal: str, messages: int) -> None:
        """Count messages that were read again."""
        self._metrics.record_replayed(journal, messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums over one attempt to serve; the next begins at zero."""

    consumed_bytes: int = 0
    """Journal bytes of completed transactions."""
    cpu_seconds: float = 0.0
    """CPU time of the worker thread, up to the last call that it finished."""
