"""Perform many small transactions in few large ones, so that a bad one does not affect the others.

    checkpoints ──► waves (in order)  ──► batches (at once)  ──► one etcd transaction each
                    same key: later       ≤ 128 operations
                    wave                  ≤ 128 comparisons

Every key that a refused batch compared is read back. So the culprits are known after one more round trip; the others
are sent again without them. (Reading back within the transaction would save that round trip, but would double the size
of every batch because of the few that are refused.) If etcd refuses a batch as a whole without saying why, the batch is
halved until the culprit is alone.

The fixed comparisons (the leader's own key) are part of every transaction. If one of *them* fails, nothing more is
sent, because this writer has lost the right to write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from broadsheet.allocator.errors import (
    EtcdError,
    EtcdLimitError,
    EtcdRequestError,
    TxnConflictError,
)
from broadsheet.allocator.etcd.api import Etcd, TxnResult
from broadsheet.allocator.ops import (
    TXN_OPERATIONS_MAX,
    Compare,
    CompareResult,
    CompareTarget,
    Delete,
    Get,
    KeyValue,
    Put,
    TxnCheckpoint,
)
from broadsheet.runtime.task_group import TaskGroup

PIPELINED_TXNS_MAX = 4
"""Transactions in flight. Etcd gains a third from four over one (two cores, one node), and nothing from more."""
BATCH_BYTES_MAX = 1024 * 1024
"""Keys and values in one transaction, below etcd's default of 1.5 MiB with room for the framing."""

Note = Callable[[Sequence[TxnCheckpoint]], Put | None]
"""Returns the additional write of a transaction of these checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A checkpoint that was not applied, and the reason, which lies in itself."""

    checkpoint: TxnCheckpoint
    cause: EtcdError
    """`TxnConflictError` with the keys that another writer changed, or etcd's refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Outcome of the checkpoints."""

    revision: int
    """Of the last transaction that was applied; 0 if none was."""
    applied: tuple[str, ...]
    """Subjects of the checkpoints that were applied."""
    culprits: tuple[Culprit, ...]
    fixed_failed: tuple[Compare, ...] = ()
    """Fixed comparisons that failed: leadership is lost, and only `applied` was applied."""

    @property
    def leadership_lost(self) -> bool:
        """True if a fixed comparison failed."""
        return bool(self.fixed_failed)


async def apply_checkpoints(
    etcd: Etcd,
    checkpoints: Sequence[TxnCheckpoint],
    *,
    fixed: tuple[Compare, ...] = (),
    on_progress: Callable[[], None] = lambda: None,
    note: Note | None = None,
) -> BatchReport:
    """Apply checkpoints: in order if they touch the same key, concurrently otherwise.

    Args:
        etcd: Where they are applied.
        checkpoints: None is split; each needs at most 128 operations and, with `fixed`, 128 comparisons.
        fixed: Comparisons of every transaction.
        on_progress: Called after every transaction that was answered.
        note: Returns an additional write for a transaction of those checkpoints, if there is one.

    Raises:
        EtcdUnavailableError: some transactions may or may not be applied. Compare with the key space, then plan again.
    """
    run = _Run(etcd, fixed, on_progress, note)
    for wave in waves_of(checkpoints):
        if run.fixed_failed:
            break
        await run.perform(wave)
    return BatchReport(
        revision=run.revision,
        applied=tuple(run.applied),
        culprits=tuple(run.culprits),
        fixed_failed=run.fixed_failed,
    )


@dataclass(slots=True)
class _Run:
    """Progress of one call."""

    etcd: Etcd
    fixed: tuple[Compare, ...]
    on_progress: Callable[[], None]
    note: Note | None = None
    revision: int = 0
    applied: list[str] = field(default_factory=list)
    culprits: list[Culprit] = field(default_factory=list)
    fixed_failed: tuple[Compare, ...] = ()

    async def perform(self, checkpoints: Sequence[TxnCheckpoint]) -> None:
        """Apply checkpoints that are independent of one another."""
        slots = asyncio.Semaphore(PIPELINED_TXNS_MAX)

        async def perform_one(batch: Sequence[TxnCheckpoint]) -> None:
            async with slots:
                await self._perform_batch(batch)

        async with TaskGroup() as group:
            for number, batch in enumerate(self._batches(checkpoints)):
                group.start_soon(perform_one(batch), name=f"txn batch {number}")

    async def _perform_batch(self, batch: Sequence[TxnCheckpoint]) -> None:
        todo = [batch]
        while todo and not self.fixed_failed:
            now = todo.pop()
            try:
                result = await self._send(now)
            except (EtcdLimitError, EtcdRequestError) as error:
                # Etcd refused the batch as a whole and did not say why: it is halved until the culprit is alone.
                if len(now) == 1:
                    self.culprits.append(Culprit(checkpoint=now[0], cause=error))
                else:
                    middle = len(now) // 2
                    todo += [now[middle:], now[:middle]]
                continue
            if result.succeeded:
                # Batches are concurrent, so a lower revision may be answered last.
                self.revision = max(self.revision, result.header.revision)
                self.applied += [checkpoint.subject for checkpoint in now]
            elif innocent := self._sort_out(now, await self._read_back(now)):
                todo.append(innocent)

    async def _send(self, batch: Sequence[TxnCheckpoint]) -> TxnResult:
        operations = tuple(operation for each in batch for operation in each.operations)
        noted = self.note(batch) if self.note is not None else None
        is_full = len(operations) >= TXN_OPERATIONS_MAX
        if noted is not None and not is_full:
            operations = (*operations, noted)
        result = await self.etcd.txn(_compares(self.fixed, batch), operations)
        if noted is not None and is_full and result.succeeded:
            # A checkpoint that leaves no room for its note: the note follows in a second transaction.
            await self.etcd.txn(self.fixed, (noted,))
        self.on_progress()
        return result

    async def _read_back(self, batch: Sequence[TxnCheckpoint]) -> dict[bytes, KeyValue]:
        gets = dict.fromkeys(
            Get(compare.key, compare.range_end) for compare in _compares(self.fixed, batch)
        )
        result = await self.etcd.txn((), tuple(gets))
        return {kv.key: kv for kvs in result.gets for kv in kvs}

    def _sort_out(
        self, batch: Sequence[TxnCheckpoint], found: dict[bytes, KeyValue]
    ) -> Sequence[TxnCheckpoint]:
        """Record which checkpoints caused a refusal, and return the others.

        Args:
            batch: The refused checkpoints.
            found: The compared keys, read a little later. A comparison that failed may hold by then, for example
                because a key that should be absent was deleted meanwhile: then there is no culprit any more.
        """
        fixed_failed = tuple(each for each in self.fixed if not holds(each, found))
        if fixed_failed:
            # Never lower it: a refusal at an earlier revision may be handled after a later one.
            self.fixed_failed = fixed_failed
            return ()
        innocent: list[TxnCheckpoint] = []
        for checkpoint in batch:
            failed = tuple(each.key for each in checkpoint.compares if not holds(each, found))
            if failed:
                cause = TxnConflictError(failed)
                self.culprits.append(Culprit(checkpoint=checkpoint, cause=cause))
            else:
                innocent.append(checkpoint)
        return innocent

    def _batches(self, checkpoints: Iterable[TxnCheckpoint]) -> Iterable[Sequence[TxnCheckpoint]]:
        """Cut a wave into batches below the limits. A checkpoint over the limits is sent alone, for etcd to refuse."""
        batch: list[TxnCheckpoint] = []
        # Leaves room for the note.
        operations_max = TXN_OPERATIONS_MAX - (self.note is not None)
        compares, operations, size = set(self.fixed), 0, 0
        for checkpoint in checkpoints:
            assert checkpoint.operations, f"checkpoint {checkpoint.subject} has no operation"
            compares |= set(checkpoint.compares)
            operations += len(checkpoint.operations)
            size += _size_bytes(checkpoint)
            if batch and (
                len(compares) > TXN_OPERATIONS_MAX
                or operations > operations_max
                or size > BATCH_BYTES_MAX
            ):
                yield batch
                batch = []
                compares = set(self.fixed) | set(checkpoint.compares)
                operations, size = len(checkpoint.operations), _size_bytes(checkpoint)
            batch.append(checkpoint)
        if batch:
            yield batch


def holds(compare: Compare, found: dict[bytes, KeyValue]) -> bool:
    """Return whether a comparison holds for the keys found; an absent key counts as zero, and has no value.

    Source: etcd-io/etcd server/etcdserver/apply.go (applyCompare).
    """
    if compare.range_end:
        kvs = [kv for key, kv in found.items() if compare.key <= key < compare.range_end]
    else:
        kvs = [found[compare.key]] if compare.key in found else []
    if not kvs:
        return compare.target is not CompareTarget.VALUE and _is_as_expected(compare, 0)
    return all(_is_as_expected(compare, getattr(kv, compare.target.value)) for kv in kvs)


def _is_as_expected(compare: Compare, found: int | bytes) -> bool:
    if compare.result is CompareResult.EQUAL:
        return found == compare.expected
    expected = compare.expected
    if isinstance(found, bytes):
        return isinstance(expected, bytes) and found < expected
    return isinstance(expected, int) and found < expected


def _compares(fixed: tuple[Compare, ...], batch: Sequence[TxnCheckpoint]) -> tuple[Compare, ...]:
    """Return all comparisons without duplicates, because checkpoints often compare the same member's key."""
    return tuple(dict.fromkeys([*fixed, *(each for one in batch for each in one.compares)]))


def _size_bytes(checkpoint: TxnCheckpoint) -> int:
    return sum(
        len(operation.key) + (len(operation.value) if isinstance(operation, Put) else 0)
        for operation in checkpoint.operations
    )


def waves_of(checkpoints: Sequence[TxnCheckpoint]) -> list[list[TxnCheckpoint]]:
    """Group checkpoints so that each follows earlier ones that write what it touches, or touch what it writes."""
    if _are_independent(checkpoints):
        return [list(checkpoints)] if checkpoints else []
    waves: list[list[TxnCheckpoint]] = []
    first_wave = 0
    wave_after_touch: dict[bytes, int] = {}
    wave_after_write: dict[bytes, int] = {}
    for checkpoint in checkpoints:
        if any(_is_range(operation) for operation in checkpoint.operations):
            # A range may overlap any key, so it gets a separate wave.
            waves.append([checkpoint])
            first_wave = len(waves)
            continue
        written = {each.key for each in checkpoint.operations if not isinstance(each, Get)}
        touched = written | {each.key for each in checkpoint.operations}
        touched |= {each.key for each in checkpoint.compares}
        number = max(
            first_wave,
            max((wave_after_write.get(key, 0) for key in touched), default=0),
            max((wave_after_touch.get(key, 0) for key in written), default=0),
        )
        if number == len(waves):
            waves.append([])
        waves[number].append(checkpoint)
        wave_after_write.update(dict.fromkeys(written, number + 1))
        for key in touched:
            wave_after_touch[key] = max(wave_after_touch.get(key, 0), number + 1)
    return waves


def _are_independent(checkpoints: Sequence[TxnCheckpoint]) -> bool:
    """Return whether no checkpoint writes what another one touches: the usual case, checked cheaply."""
    written: set[bytes] = set()
    touched: set[bytes] = set()
    for checkpoint in checkpoints:
        own = {each.key for each in checkpoint.operations}
        compared = {each.key for each in checkpoint.compares}
        if not (
            written.isdisjoint(own)
            and written.isdisjoint(compared)
            and touched.isdisjoint(own)
            and not any(map(_is_range, checkpoint.operations))
        ):
            return False
        written |= own
        touched |= compared
    return True


def _is_range(operation: object) -> bool:
    return isinstance(operation, Delete | Get) and bool(operation.range_end)
