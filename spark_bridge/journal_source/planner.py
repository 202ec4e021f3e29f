"""Plans micro-batches over all selected journals. Driver only.

The scans go on from batch to batch in memory. What they find depends on the offsets alone, so a batch whose scan is not
at hand (the query was restarted) is scanned again and found to be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from consumer.journal.client import JournalClient
from spark_bridge.format_options import OptionError
from spark_bridge.journal_source.byte_runs import (
    BytePartition,
    damaged_partitions_of,
    partitions_of,
)
from spark_bridge.journal_source.codecs import tables_for
from spark_bridge.journal_source.commit_scan import (
    NO_LIMITS,
    UNLIMITED,
    ScanLimits,
    ScannedBatch,
)
from spark_bridge.journal_source.journal_state import AT_THE_BEGINNING, JournalState
from spark_bridge.journal_source.journals import named_offsets, write_heads
from spark_bridge.journal_source.offsets import BatchSpan, States
from spark_bridge.journal_source.options import ReadMode, ReadOptions
from spark_bridge.journal_source.scanner import JournalScanner
from spark_bridge.journal_source.table_clocks import TableClocks

_STRETCHES: Final = 16
"""Of which a partition is put together, or more."""
_STRETCH_BYTES_MAX: Final = 1 << 20
_SHORT_STRETCH_BYTES_MAX: Final = 64 << 10
"""Where a small batch may have to be many partitions."""

Heads = Mapping[str, int]
"""Where each journal ends, bytes."""


class BatchLimits(NamedTuple):
    """How much a micro-batch may hold, of all journals together."""

    rows_max: int = UNLIMITED
    bytes_max: int = UNLIMITED


class _Planned(NamedTuple):
    start: JournalState
    batch: ScannedBatch


class Planner:
    """Plans the micro-batches of one read."""

    def __init__(self, client: JournalClient, options: ReadOptions) -> None:
        """Take what reads the journals."""
        self._client = client
        self._options = options
        self._content_types: Mapping[str, str] = {}
        self._scanners: dict[str, JournalScanner] = {}
        self._planned: dict[str, _Planned] = {}
        self._clocks = TableClocks(options)
        self._first = 0

    def select(self, content_types: Mapping[str, str]) -> None:
        """Say which journals there are, and the content type of each."""
        self._content_types = content_types

    async def plan_end(
        self, start: States, heads: Heads, limits: BatchLimits
    ) -> dict[str, JournalState]:
        """Return where the micro-batch that begins at `start` ends, in every journal.

        Each journal gets an equal share of the limits, and what others leave of theirs. A transaction larger than all
        that is taken whole, and then alone.

        Args:
            start: Where it begins; journals that are missing are read whole.
            heads: How far it may go.
            limits: How much it may hold.

        Raises:
            FramingError: content is no messages.
            ConsumerError: a journal cannot be read.
        """
        journals = self._in_turn(heads)
        begin = {**dict.fromkeys(journals, AT_THE_BEGINNING), **start}
        end = dict(begin)
        await self._plan_shares(journals, end, heads=heads, limits=limits)
        if end != begin:
            return end
        whole = ScanLimits(rows_max=limits.rows_max, bytes_max=limits.bytes_max)
        for name in journals:
            batch = await self._plan_one(name, begin[name], head=heads[name], limits=whole)
            if batch.end != begin[name]:
                return {**begin, name: batch.end}
        return begin

    async def partitions(self, span: BatchSpan) -> list[BytePartition]:
        """Return the partitions of the micro-batch between two offsets.

        Raises:
            FramingError: content is no messages.
            ConsumerError: a journal cannot be read.
        """
        batches = {
            name: await self._batch_between(name, span.start_of(name), span.end[name])
            for name in span.names
        }
        wanted = sum(int((batch.ends - batch.begins).sum()) for batch in batches.values())
        share = max(1, wanted // self._options.partitions_min)
        bytes_max = min(self._options.partition_bytes, share)
        return [
            partition
            for name, batch in batches.items()
            for partition in (
                *partitions_of(name, batch.begins, batch.ends, bytes_max=bytes_max),
                *damaged_partitions_of(
                    name, batch.damaged_begins, batch.damaged_ends, bytes_max=bytes_max
                ),
            )
        ]

    async def _plan_shares(
        self,
        journals: list[str],
        end: dict[str, JournalState],
        *,
        heads: Heads,
        limits: BatchLimits,
    ) -> None:
        """Move each journal's end on by its share of the limits."""
        rows = bytes_ = 0
        for index, name in enumerate(journals):
            left = len(journals) - index
            share = ScanLimits(
                rows_max=_share(limits.rows_max, rows, left),
                bytes_max=_share(limits.bytes_max, bytes_, left),
                may_exceed=False,
            )
            start = end[name]
            batch = await self._plan_one(name, start, head=heads[name], limits=share)
            end[name] = batch.end
            rows += batch.rows
            bytes_ += batch.end.offset - start.offset

    async def _plan_one(
        self, name: str, start: JournalState, *, head: int, limits: ScanLimits
    ) -> ScannedBatch:
        scanner = self._scanner(name, start)
        try:
            batch = await scanner.next_batch(head, limits)
        except BaseException:
            del self._scanners[name]  # it went on, and knows no way back
            raise
        self._planned[name] = _Planned(start, batch)
        return batch

    async def _batch_between(
        self, name: str, start: JournalState, end: JournalState
    ) -> ScannedBatch:
        planned = self._planned.get(name)
        if planned is not None and planned.start == start and planned.batch.end == end:
            return planned.batch
        return await self._plan_one(name, start, head=end.offset, limits=NO_LIMITS)

    def _scanner(self, name: str, state: JournalState) -> JournalScanner:
        scanner = self._scanners.get(name)
        if scanner is None or scanner.state != state:
            content_type = self._content_types.get(name, "")
            scanner = JournalScanner(
                self._client,
                name,
                new_tables=partial(tables_for, name, content_type, self._options),
                state=state,
                gaps_allowed=not self._options.fail_on_data_loss,
                stretch_bytes=_stretch_bytes(self._options),
                keep_damaged=self._options.mode is ReadMode.PERMISSIVE,
                on_table=self._clocks.on_table,
            )
            self._scanners[name] = scanner
        return scanner

    def _in_turn(self, heads: Heads) -> list[str]:
        """Return the journals in an order that begins elsewhere each time, so that none is always served last."""
        journals = sorted(heads.keys() & self._content_types.keys())
        if not journals:
            return []
        self._first = (self._first + 1) % len(journals)
        return journals[self._first :] + journals[: self._first]


async def batch_span(client: JournalClient, start: States, options: ReadOptions) -> BatchSpan:
    """Return the span of a read that is no stream: to the write heads of now, or to the offsets that the option says.

    Only the offsets of the end count: it is for the scan to find the producers' states.

    Raises:
        OptionError: the option says no offset for a journal, or one that it has not reached.
    """
    journals = sorted(start)
    heads = await write_heads(client, journals)
    ends = heads
    if options.end.kind == "offsets":
        ends = await named_offsets(client, "end", place=options.end, journals=journals)
        for name in journals:
            if not 0 <= ends.get(name, -1) <= heads[name]:
                expected = f"of {name} an offset up to its write head, {heads[name]}"
                raise OptionError("end", expected, got=str(ends.get(name)))
    return BatchSpan(start, {name: JournalState(ends[name]) for name in journals})


def _stretch_bytes(options: ReadOptions) -> int:
    """Return how finely partitions can be cut."""
    bytes_max = _SHORT_STRETCH_BYTES_MAX if options.partitions_min > 1 else _STRETCH_BYTES_MAX
    return max(1, min(bytes_max, options.partition_bytes // _STRETCHES))


def _share(limit: int, used: int, left: int) -> int:
    """Return a journal's share of what is left of a limit."""
    return limit if limit == UNLIMITED else max(0, -(-(limit - used) // left))
