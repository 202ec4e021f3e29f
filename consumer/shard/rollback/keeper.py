"""Rolls back messages that a shard's former producers left pending (`broadsheet.journals.message.rollback`).

    fenced ─► take_over: what former producers had on file ─► begin: bring it forward to the checkpoint ─► on file
                                                                                                             │
    first publish into a journal ─► keep ─► on file ─► append                undo: append it ◄───────────────┤
    (every later one)                 ──────────────► append                   └─► publish_at is known        └─► commit
                                                                                   and, late, once more;
                                                                                   drop what is superseded

A producer's first append into a journal and its first commit wait for one write to etcd; nothing else does. An
attempt's first producer does not wait for journals that former ones had on file, if it could `foresee` them: it puts
its own rollbacks for them on file while the shard is still being fenced and restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, Self, TypeAlias

import structlog

from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.progress import UNDONE, Progress
from broadsheet.consumer.shard.rollback.records import HeldRecords
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalNotFoundError,
    JournalUnavailableError,
)
from broadsheet.journals.message.producers import PRUNE_HORIZON_SECONDS
from broadsheet.journals.message.rollback import (
    UUID_TEXT_BYTES,
    Rollback,
    acknowledgements_of_carried,
    brought_forward,
    last_acknowledgement,
    unaccounted,
)
from broadsheet.journals.message.uuid import clock_at, unix_seconds_of
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.op_future import completed
from broadsheet.wire.journal_pb2 import AppendResponse, Fragment
from broadsheet.wire.shard_pb2 import Checkpoint

AGED_SECONDS = PRUNE_HORIZON_SECONDS / 2
"""Intents of before are looked for in their journals: half of the time for which readers surely remember them."""
OnGone: TypeAlias = Callable[[Rollback], None]
UNDO_REST_SECONDS = 0.1
"""Delay of the first undo, so that it does not compete with clients that were waiting for a primary."""
_log = structlog.get_logger()

# Search a journal for an append whose outcome was never learned.

LANDED_BYTES_MAX = 256 << 20
"""How much of an output is read for the last acknowledgement of a former producer: some seconds."""
SKEW_SECONDS = 3600.0
"""By how much clocks of writers and brokers may differ."""


async def find_frame(
    journals: JournalClient, journal: str, frame: bytes, *, at_unix_seconds: float
) -> bool:
    """Return whether a journal contains a unique frame, or did and may have lost it by retention.

    Args:
        journals: Reads.
        journal: Its name; one that is gone has nothing.
        frame: Holds a UUID.
        at_unix_seconds: When it was made; the journal is read from then on.

    Raises:
        ServiceError: the journal cannot be read now.
    """
    since = max(0, int(at_unix_seconds - SKEW_SECONDS))
    try:
        oldest, _ = await _oldest(journals, journal)
        return _is_gone(oldest, since) or await _holds(journals, journal, frame, since)
    except JournalNotFoundError:
        return False


async def last_landed(
    journals: JournalClient, rollback: Rollback, *, bytes_max: int = LANDED_BYTES_MAX
) -> int | None:
    """Return the clock of the last acknowledgement of a rollback's producer in its journal; the rollback's if there
    is none.

    A journal with no more content than may be read is read whole, so that it does not matter whether the producer's
    clock was right. Of longer journals, content older than the rollback is skipped.

    Args:
        journals: Reads.
        rollback: Made before the producer's first message in the journal.
        bytes_max: How much is read at most.

    Returns:
        None if that is unknown: content of that time is gone, or there is too much of it.

    Raises:
        ServiceError: the journal cannot be read now.
    """
    since = max(0, int(unix_seconds_of(rollback.clock) - SKEW_SECONDS))
    clock, size, before = rollback.clock, 0, b""
    try:
        oldest, write_head = await _oldest(journals, rollback.journal)
        if _is_gone(oldest, since):
            return None
        if oldest is not None and write_head - oldest.begin <= bytes_max:
            since = 0
        reader = journals.reader(rollback.journal, block=False, begin_mod_time=since)
        async with aclosing(reader):
            async for span in reader:
                size += len(span.content)
                if size > bytes_max:
                    return None
                content = before + span.content
                found = last_acknowledgement(content, rollback.producer)
                clock = clock if found is None else max(clock, found)
                before = content[-UUID_TEXT_BYTES:]
    except JournalNotFoundError:
        pass  # Appending the rollback detects that, too.
    return clock


async def _oldest(journals: JournalClient, journal: str) -> tuple[Fragment | None, int]:
    """Return a journal's first fragment, if any, and its write head, bytes."""
    async with journals.reader(journal, block=False, metadata_only=True) as oldest:
        async for _ in oldest:
            pass
    return oldest.fragment, oldest.write_head


def _is_gone(oldest: Fragment | None, since_unix_seconds: int) -> bool:
    """Return whether content of a time is missing at the journal's beginning."""
    # An open fragment has no time yet.
    return oldest is not None and oldest.begin > 0 and not 0 < oldest.mod_time < since_unix_seconds


async def _holds(
    journals: JournalClient, journal: str, frame: bytes, since_unix_seconds: int
) -> bool:
    before = b""
    reader = journals.reader(journal, block=False, begin_mod_time=since_unix_seconds)
    async with aclosing(reader):
        async for span in reader:
            content = before + span.content
            if frame in content:
                return True
            before = content[-len(frame) :]
    return False


class AcknowledgementSearch(Protocol):
    """Search for acknowledgements of former producers."""

    async def has_landed(self, rollback: Rollback) -> bool:
        """Return whether a rollback's acknowledgement is in its journal."""
        ...

    async def last_landed(self, rollback: Rollback) -> int | None:
        """Return the clock of the last acknowledgement of its producer in its journal; None if that is unknown."""
        ...


class JournalSearch:
    """Search in the journals themselves."""

    def __init__(self, journals: JournalClient) -> None:
        self._journals = journals

    async def has_landed(self, rollback: Rollback) -> bool:
        """Search as `find_frame` does."""
        at_unix_seconds = unix_seconds_of(rollback.clock)
        return await find_frame(
            self._journals, rollback.journal, rollback.content, at_unix_seconds=at_unix_seconds
        )

    async def last_landed(self, rollback: Rollback) -> int | None:
        """Search as the function `last_landed` does."""
        return await last_landed(self._journals, rollback)


class UndoAppends:
    """Appends of rollbacks, twice: a process that slept may have published after the first time."""

    def __init__(
        self, shard_id: str, appends: AppendService, progress: Progress, *, again_seconds: float
    ) -> None:
        """Bind the appends to an attempt.

        Args:
            shard_id: For the log.
            appends: Appends them, behind the restored checkpoint's intents; not the service that publishes, for a
                journal may be gone.
            progress: Learns where former producers' messages end.
            again_seconds: When to append a second time. Also the longest wait for journals that cannot be appended to.
        """
        self._shard_id = shard_id
        self._appends = appends
        self._progress = progress
        self._again_seconds = again_seconds

    async def first(self, rollbacks: Collection[Rollback], on_gone: OnGone) -> None:
        """Append rollbacks, then let those waiting for offsets through.

        Args:
            rollbacks: To append.
            on_gone: Called with each whose journal is gone, if need be after this has returned.
        """
        await self._append(rollbacks, on_gone)
        self._progress.told(UNDONE)

    async def again(self, rollbacks: Callable[[], Collection[Rollback]], on_gone: OnGone) -> None:
        """Append rollbacks once it is time for that.

        Args:
            rollbacks: Returns which.
            on_gone: As for `first`.
        """
        await asyncio.sleep(self._again_seconds)
        await self._append(rollbacks(), on_gone)

    async def _append(self, rollbacks: Collection[Rollback], on_gone: OnGone) -> None:
        """Append rollbacks, and wait for a bounded time: one journal's brokers must not delay all answers."""
        waiting, done = set(rollbacks), asyncio.Event()
        for rollback in rollbacks:
            future = self._appends.append(rollback.journal, rollback.content)
            future.add_done_callback(partial(self._on_appended, rollback, waiting, done, on_gone))
        if waiting:
            try:
                async with asyncio.timeout(self._again_seconds):
                    await done.wait()
            except TimeoutError:
                journals = sorted(rollback.journal for rollback in waiting)
                _log.warning("rollbacks.still_waiting", shard=self._shard_id, journals=journals)

    def _on_appended(
        self,
        rollback: Rollback,
        waiting: set[Rollback],
        done: asyncio.Event,
        on_gone: OnGone,
        future: Future[AppendResponse],
    ) -> None:
        error = future.exception()
        if error is None:
            self._progress.update({}, {rollback.journal: future.result().commit.end})
        elif isinstance(error, JournalNotFoundError):
            on_gone(rollback)
        elif not isinstance(error, (JournalUnavailableError, AppendOutcomeUnknownError)):
            # Those two mean that the attempt ends.
            _log.warning("rollbacks.not_undone", journal=rollback.journal, cause=str(error))
        waiting.discard(rollback)
        if not waiting:
            done.set()


@dataclass(frozen=True, slots=True)
class PublishingAttempt:
    """An attempt to serve, as far as its rollbacks depend on it."""

    producer: int
    """Who publishes first in it, 48 bits."""
    transactions: Callable[[], int]
    """Tells how many it has completed."""


@dataclass(slots=True)
class _Keeping:
    """Rollbacks on their way to etcd."""

    forward: list[Rollback] = field(default_factory=list)
    """Of former producers."""
    rollbacks: list[Rollback] = field(default_factory=list)
    unknown: list[Rollback] = field(default_factory=list)
    """To be dropped, because the last commits of their producers cannot be determined."""
    unused: list[Rollback] = field(default_factory=list)
    """Foreseen, and to be dropped."""
    gone: list[Rollback] = field(default_factory=list)
    """Of journals that turned out to be gone after all else was dropped."""
    kept: Future[None] = field(default_factory=Future)


class Rollbacks:
    """Rollbacks of one attempt; lives on the event loop."""

    def __init__(
        self,
        records: HeldRecords,
        attempt: PublishingAttempt,
        search: AcknowledgementSearch,
        undoing: UndoAppends,
        clock: Clock,
    ) -> None:
        """Bind the rollbacks of an attempt.

        Args:
            records: Where they are on file.
            attempt: The attempt.
            search: Finds acknowledgements of former producers.
            undoing: Appends the rollbacks.
            clock: Tells wall time.
        """
        self.resumed = asyncio.Event()
        """Set once the restored checkpoint's intents are on their way."""
        self._search = search
        self._landed: dict[tuple[int, str], int | None] = {}
        """What was found of the last acknowledgements of producers of which the checkpoint tells nothing."""
        self._transactions = attempt.transactions
        self._transactions_before = 0
        """As of the restored checkpoint."""
        self._carried: set[tuple[int, str]] = set()
        """Producers and journals of which the restored checkpoint carries messages."""
        self._records = records
        self._undoing = undoing
        self._clock = clock
        self._producer = attempt.producer
        self._foreseen: dict[str, Rollback] = {}
        """By journal, of that producer: on file before it publishes anything."""
        self._foreseeing: dict[str, Rollback] = {}
        """Those, and such as may be on file because the wait for them was given up."""
        self._precise: list[Rollback] | None = []
        """What is to replace them once the first transactions are through; None: they are, so it is done at once."""
        self._left: list[Rollback] = []
        """Of producers of other attempts, which may have left messages pending."""
        self._gone: set[Rollback] = set()
        """Those whose journal is gone."""
        self._is_undone = False
        """What is found gone from now on is dropped as it is found."""
        self._finished: dict[str, Rollback] = {}
        """By journal, of producers of this attempt whose transactions all ended well."""
        self._current: dict[str, Rollback] = {}
        """By journal, of the producer that publishes now."""
        self._keeping = _Keeping()
        self._wake = asyncio.Event()

    @classmethod
    def of_attempt(
        cls,
        environment: ShardEnvironment,
        records: HeldRecords,
        attempt: PublishingAttempt,
        *,
        appends: AppendService,
        progress: Progress,
    ) -> Self:
        """Create the rollbacks of an attempt, with the services and limits of this process.

        Args:
            environment: The services and limits.
            records: Where they are on file.
            attempt: The attempt.
            appends: See `UndoAppends`.
            progress: See `UndoAppends`.
        """
        again_seconds = environment.config.rollback_again_seconds
        return cls(
            records,
            attempt,
            JournalSearch(environment.journals),
            UndoAppends(records.shard_id, appends, progress, again_seconds=again_seconds),
            environment.clock,
        )

    async def foresee(self) -> None:
        """Record rollbacks of the first producer in advance, for journals with records of former producers.

        Nothing waits for this: if it is cancelled or too late, it leaves a rollback of nothing, which successors drop.

        Raises:
            AssignmentLostError: the shard is no longer ours.
        """
        clock = clock_at(int(self._clock.wall_seconds() * 1e9))
        former = await self._records.read()
        found = [each.of_successor(self._producer, clock) for each in former]
        foreseen = {each.journal: each for each in found if each is not None}
        if foreseen:
            self._foreseeing = foreseen
            await self._records.write(keep=foreseen.values())
            self._foreseen = foreseen

    async def take_over(self) -> None:
        """Read the recorded rollbacks of the shard's former producers.

        Requires:
            None of them can commit any more: its recovery log is ours, or the store was restored.
        """
        found = await self._records.read()
        self._left = [each for each in found if each.producer != self._producer]

    async def settle(self, checkpoint: Checkpoint) -> None:
        """Remove carried messages of long ago from the intents of a restored checkpoint, if they have landed.

        Readers forget a producer that is silent for a day, so they would take a repetition for new messages. This also
        determines the last commits of former producers that the checkpoint does not mention.
        """
        await self._account(checkpoint)
        former = [*self._left, *self._finished.values(), *self._current.values()]
        aged = clock_at(int((self._clock.wall_seconds() - AGED_SECONDS) * 1e9))
        carried = acknowledgements_of_carried(former, checkpoint.ack_intents)
        self._carried = {(each.producer, each.journal) for each in carried}
        self._transactions_before = self._transactions()
        for each in carried:
            if each.clock < aged and await self._search.has_landed(each):
                checkpoint.ack_intents[each.journal] = each.content

    async def _account(self, checkpoint: Checkpoint) -> None:
        """Search journals for the commits of former producers, if this process did not write the checkpoint."""
        if checkpoint == Checkpoint():
            return  # There were no commits.
        former = [*self._left, *self._finished.values(), *self._current.values()]
        theirs = set(unaccounted(former, checkpoint.ack_intents))
        for each in self._left:
            if each in theirs and _key(each) not in self._landed:
                self._landed[_key(each)] = await self._search.last_landed(each)

    def begin(self, checkpoint: Checkpoint) -> Future[None]:
        """Prepare for a new producer, which continues from `checkpoint`; its commits wait for the future.

        Records are brought forward, because the new producer's checkpoints do not contain the old commits.
        """
        unknown = [each for each in self._left if self._landed.get(_key(each), 0) is None]
        for each in unknown:
            _log.warning("rollbacks.left_out", shard=self._records.shard_id, **_names(each))
        self._left = [each for each in self._left if each not in unknown]
        finished = self._finished | self._current
        before = [*self._left, *finished.values()]
        landed = {key: clock for key, clock in self._landed.items() if clock is not None}
        after = brought_forward(before, checkpoint.ack_intents, landed=landed)
        changed = [new for old, new in zip(before, after, strict=True) if new != old]
        self._left = after[: len(self._left)]
        self._finished = {each.journal: each for each in after[len(self._left) :]}
        self._current = {}
        if self._precise:
            self._precise = []  # Their producer is a former one now; its records do, or are in `changed`.
        if not changed and not unknown:
            return completed()
        self._keeping.forward.extend(changed)
        self._keeping.unknown.extend(unknown)
        self._wake.set()
        return self._keeping.kept

    def keep(self, rollbacks: Sequence[Rollback]) -> Future[None]:
        """Record rollbacks of the current producer; the future succeeds once they, or equivalent ones, are stored.

        Rollbacks recorded in advance are replaced, too: to readers they say that their producer lost progress.
        """
        self._current.update((rollback.journal, rollback) for rollback in rollbacks)
        foreseen = all(map(self._is_foreseen, rollbacks))
        if foreseen and self._precise is not None:
            self._precise.extend(rollbacks)
            return completed()
        self._keeping.rollbacks.extend(rollbacks)
        self._wake.set()
        return completed() if foreseen else self._keeping.kept

    async def run(self) -> None:
        """Perform the writes of `begin` and `keep`, until cancelled.

        Raises:
            AssignmentLostError: the shard is no longer ours. Nothing was appended that waited.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            keeping, self._keeping = self._keeping, _Keeping()
            kept = keeping.rollbacks
            # A producer that finished well has nothing pending: the new record replaces both.
            finished = [
                self._finished[one.journal] for one in kept if one.journal in self._finished
            ]
            done = [each for each in finished if not self._is_of_checkpoint(each)]
            forward = [each for each in keeping.forward if each not in done]
            published = {each.journal for each in kept}
            unused = [each for each in keeping.unused if each.journal not in published]
            drop = [*done, *unused, *keeping.gone, *keeping.unknown]
            await self._records.write(keep=[*forward, *kept], drop=drop)
            for each in done:
                del self._finished[each.journal]
            keeping.kept.set_result(None)

    async def undo(self, begun: Future[None]) -> None:
        """Roll back what former producers left, once the writes of `begin` are done, and once more later.

        Then drop records that are no longer needed, and those made in advance but never used.

        Args:
            begun: What `begin` returned.
        """
        left = list(self._left)
        await asyncio.wrap_future(begun)
        await asyncio.sleep(UNDO_REST_SECONDS)
        # An intent that carries messages goes first: the acknowledgement alone, ahead of them,
        # would discard them.
        await self.resumed.wait()
        self._replace_foreseen()
        await self._undoing.first(left, self._note_gone)
        if not left:
            return
        await self._undoing.again(
            lambda: [each for each in left if each not in self._gone], self._note_gone
        )
        self._drop_unused()
        self._is_undone = True
        drop = [each for each in left if each in self._gone or self._is_superseded(each)]
        await self._records.write(drop=drop)
        self._left = [each for each in self._left if each not in drop]

    async def inherit(self, shard_id: str) -> None:
        """Take over the records of a shard that ours absorbed, and roll back later what its former producers left.

        Its primary had rolled back once. Processes that slept then may publish still, until their leases end, and the
        shard that would roll back once more is gone.

        Requires:
            None of the producers can commit any more.

        Raises:
            AssignmentLostError: the shard is no longer ours.
            ServiceError: a journal cannot be read.
        """
        found = await self._records.of_absorbed(shard_id)
        landed = {_key(each): await self._search.last_landed(each) for each in found}
        known = {key: clock for key, clock in landed.items() if clock is not None}
        for each in found:
            if _key(each) not in known:
                _log.warning("rollbacks.left_out", shard=self._records.shard_id, **_names(each))
        after = brought_forward([each for each in found if _key(each) in known], {}, landed=known)
        await self._records.write(keep=after)
        self._landed |= landed
        self._left += after
        await self._records.forget_absorbed(shard_id, found)
        await self._undoing.again(
            lambda: [each for each in after if each not in self._gone], self._note_gone
        )

    def _note_gone(self, rollback: Rollback) -> None:
        self._gone.add(rollback)
        # An append that backs off may learn it after `undo` has looked, and this attempt does not
        # look again.
        if self._is_undone and rollback in self._left:
            self._left.remove(rollback)
            self._keeping.gone.append(rollback)
            self._wake.set()

    def _is_foreseen(self, rollback: Rollback) -> bool:
        """Report whether its producer and journal have a record whose clock is before that of any message."""
        foreseen = self._foreseen.get(rollback.journal)
        return (
            foreseen is not None
            and foreseen.producer == rollback.producer
            and foreseen.clock <= rollback.clock
        )

    def _replace_foreseen(self) -> None:
        self._keeping.rollbacks.extend(self._precise or ())
        self._precise = None
        self._wake.set()

    def _drop_unused(self) -> None:
        """Drop rollbacks made in advance for journals without messages of its producer.

        The request goes through `run`, behind whose writes the journal's first message may be waiting.
        """
        used = self._current.keys() | self._finished.keys()
        unused = [journal for journal in self._foreseeing if journal not in used]
        for journal in unused:
            self._keeping.unused.append(self._foreseeing[journal])
            self._foreseen.pop(journal, None)
        self._foreseeing = {}
        self._wake.set()

    def _is_of_checkpoint(self, rollback: Rollback) -> bool:
        """Report whether the shard's checkpoint still carries messages of this producer for its journal."""
        is_restored = self._transactions() == self._transactions_before
        return is_restored and (rollback.producer, rollback.journal) in self._carried

    def _is_superseded(self, rollback: Rollback) -> bool:
        """Report whether the end of this producer's messages in its journal, and its intent, are no longer needed."""
        if self._is_of_checkpoint(rollback):
            return False
        age_seconds = self._clock.wall_seconds() - unix_seconds_of(rollback.clock)
        return (
            rollback.journal in self._current
            or rollback.journal in self._finished
            or age_seconds > PRUNE_HORIZON_SECONDS
        )


def _key(rollback: Rollback) -> tuple[int, str]:
    return rollback.producer, rollback.journal


def _names(rollback: Rollback) -> dict[str, str]:
    return {"journal": rollback.journal, "producer": f"{rollback.producer:012x}"}
