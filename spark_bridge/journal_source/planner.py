"""Plans micro-batches over all selected journals. Driver only.

The scans continue from batch to batch in memory. Their result depends on the offsets alone, so a batch whose scan is
not in memory (the query was restarted) is scanned again with the same result.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import structlog

from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.clock_watch import ClockAhead, ToldProducers, latest_clock
from broadsheet.journals.message.uuid import unix_seconds_of
from broadsheet.journals.transport import PATIENCE_SECONDS
from broadsheet.runtime.interpreter import keep_freed_buffers
from broadsheet.spark_bridge.brokers import open_client
from broadsheet.spark_bridge.content.registry import Tables
from broadsheet.spark_bridge.errors import JournalBytesGoneError
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.byte_runs import (
    BytePartition,
    WholeSpans,
    damaged_partitions_of,
    partitions_of,
)
from broadsheet.spark_bridge.journal_source.codecs import tables_for
from broadsheet.spark_bridge.journal_source.commit_scan import (
    NO_LIMITS,
    UNLIMITED,
    CommitScan,
    ScanLimits,
    ScannedBatch,
    ScanReplay,
)
from broadsheet.spark_bridge.journal_source.journal_state import AT_THE_BEGINNING, JournalState
from broadsheet.spark_bridge.journal_source.journals import (
    named_offsets,
    selected_journals,
    states_at,
    write_heads,
)
from broadsheet.spark_bridge.journal_source.message_table import MessageTable
from broadsheet.spark_bridge.journal_source.offsets import BatchSpan, States
from broadsheet.spark_bridge.journal_source.options import (
    SMALL_PARTITION_BYTES,
    ReadMode,
    ReadOptions,
)
from broadsheet.spark_bridge.journal_source.partition_reader import JournalPartition
from broadsheet.wire.journal_pb2 import CompressionCodec, FragmentsResponse

_STRETCHES: Final = 16
"""Least stretches that make up a partition."""
_STRETCH_BYTES_MAX: Final = 1 << 20
_SHORT_STRETCH_BYTES_MAX: Final = 64 << 10
"""Longest stretch where a small batch may have to become many partitions."""
Stored = Sequence[FragmentsResponse.ListedFragment]
"""Fragments of a journal with URLs, ascending."""
Heads = Mapping[str, int]
"""End of each journal, bytes."""

FEED_BYTES: Final = 1 << 20
"""Content that is scanned together: less costs time, more costs memory."""

_log = structlog.get_logger()


class TableClocks:
    """Checks the clocks of a read's messages, all journals together: those ahead are warned of, or end the read."""

    def __init__(
        self, options: ReadOptions, *, wall_seconds: Callable[[], float] = time.time
    ) -> None:
        """Set the bounds.

        Args:
            options: Set the largest lead of a clock, and whether a larger one fails the read.
            wall_seconds: Returns the driver's time, seconds since the Unix epoch.
        """
        self._options = options
        self._wall_seconds = wall_seconds
        self._told = ToldProducers()

    def on_table(self, journal: str, table: MessageTable) -> None:
        """Check messages of a journal.

        Raises:
            ClockAheadError: a clock is ahead, and the options refuse that.
        """
        wall_seconds, allowed = self._wall_seconds(), self._options.clock_ahead_seconds
        ahead = table.clocks > np.uint64(latest_clock(wall_seconds, ahead_seconds=allowed))
        if not ahead.any():
            return
        those = table.select(ahead)
        found = (
            ClockAhead(journal, begin, producer, unix_seconds_of(clock) - wall_seconds)
            for begin, producer, clock in zip(
                those.begins.tolist(), those.producers.tolist(), those.clocks.tolist(), strict=True
            )
        )
        if self._options.refuse_clocks_ahead:
            raise next(found).error
        told = self._told.to_tell(found, now_seconds=time.monotonic())
        if told is not None:
            _log.warning("sequencer.clock_ahead", allowed_seconds=allowed, **told.fields)


class TableReader:
    """Reads one journal of a broker as tables of its messages."""

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        *,
        new_tables: Callable[[], Tables],
        gaps_allowed: bool,
        stored: Stored = (),
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            client: Reads the journal.
            journal: Its name.
            new_tables: Returns a finder of its messages, a new one for each read.
            gaps_allowed: Whether bytes that were not read yet may be gone.
            stored: Its stored fragments, which are read without the broker.
        """
        self._client = client
        self.journal = journal
        self._new_tables = new_tables
        self._gaps_allowed = gaps_allowed
        self._stored = stored

    async def read(self, begin: int, end: int) -> AsyncGenerator[MessageTable, None]:
        """Yield the messages in [begin, end), bytes.

        Raises:
            JournalBytesGoneError: the journal lost bytes before they were read.
            FramingError: content is no messages.
            ServiceError: the journal cannot be read.
        """
        finder = self._new_tables()
        chunks: list[bytes] = []
        size, expected = 0, begin
        finder.restart(begin)
        async with self._client.reader(
            self.journal, offset=begin, block=False, end_offset=end, stored=self._stored
        ) as reader:
            async for span in reader:
                if span.offset != expected:
                    self._check_gap(expected, span.offset)
                    # Frames do not continue over a gap, so what was read before it is finished first.
                    if chunks:
                        yield finder.feed(b"".join(chunks))
                        chunks, size = [], 0
                    finder.restart(span.offset)
                expected = span.end
                chunks.append(span.content)
                size += len(span.content)
                if size >= FEED_BYTES:
                    yield finder.feed(b"".join(chunks))
                    chunks, size = [], 0
        if chunks:
            yield finder.feed(b"".join(chunks))

    def _check_gap(self, begin: int, end: int) -> None:
        """Refuse a gap, except for the one before a journal's first remaining byte."""
        if begin > 0 and not self._gaps_allowed:
            raise JournalBytesGoneError(self.journal, begin, end)


class JournalScanner:
    """Scans one journal, micro-batch by micro-batch. Driver only."""

    def __init__(
        self,
        reader: TableReader,
        scan: CommitScan,
        *,
        state: JournalState,
        on_table: Callable[[str, MessageTable], None],
    ) -> None:
        """Continue a scan.

        Args:
            reader: Reads the journal.
            scan: Sequences its messages.
            state: The state that the scan continues from.
            on_table: Called with the journal's messages when they are first read; its exceptions fail the read.
        """
        self._reader = reader
        self._scan = scan
        self._on_table = on_table
        self.state = state
        """State at which the next micro-batch begins."""

    async def next_batch(self, head: int, limits: ScanLimits) -> ScannedBatch:
        """Return the next micro-batch.

        Args:
            head: End of the journal, bytes.
            limits: Of the batch.

        Raises:
            JournalBytesGoneError: the journal lost bytes before they were read.
            FramingError: content is no messages.
            ServiceError: the journal cannot be read.
        """
        scan = self._scan
        scan.begin(limits)
        # What an earlier read left in memory may fill the batch without a new read.
        if await self._advance() and scan.position < head:
            async with aclosing(self._reader.read(scan.position, head)) as tables:
                async for table in tables:
                    self._on_table(self._reader.journal, table)
                    scan.feed(table)
                    if not await self._advance():
                        break
        batch = scan.finish(time.monotonic())
        self.state = batch.end
        return batch

    async def _advance(self) -> bool:
        """Sequence what was fed; return whether there is room for more."""
        self._scan.advance()
        while self._scan.replay is not None:
            await self._read_again(self._scan.replay)
            self._scan.end_replay()
            self._scan.advance()
        return not self._scan.full

    async def _read_again(self, replay: ScanReplay) -> None:
        async with aclosing(self._reader.read(replay.begin, replay.end)) as tables:
            async for table in tables:
                self._scan.feed_replay(table)


class MicroBatchLimits(NamedTuple):
    """The limits of a micro-batch over all journals."""

    rows_max: int = UNLIMITED
    bytes_max: int = UNLIMITED


class _Planned(NamedTuple):
    start: JournalState
    batch: ScannedBatch


class Planner:
    """Plans the micro-batches of one read."""

    def __init__(
        self,
        client: JournalClient,
        options: ReadOptions,
        stored: Mapping[str, Stored] = MappingProxyType({}),
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            client: Reads the journals.
            options: Of the read.
            stored: Stored fragments by journal, with URLs, which are read without the broker.
        """
        self._client = client
        self._options = options
        self._stored = stored
        self._content_types: Mapping[str, str] = {}
        self._scanners: dict[str, JournalScanner] = {}
        self._planned: dict[str, _Planned] = {}
        self._clocks = TableClocks(options)
        self._first = 0

    def select(self, content_types: Mapping[str, str]) -> None:
        """Set the journals, and the content type of each."""
        self._content_types = content_types

    async def plan_end(
        self, start: States, heads: Heads, limits: MicroBatchLimits
    ) -> dict[str, JournalState]:
        """Return the end of the micro-batch that begins at `start`, in every journal.

        Each journal gets an equal share of the limits, and the rest that others leave of theirs. A transaction larger
        than the limits is taken whole, and then alone.

        Args:
            start: Beginning of the batch; missing journals are read whole.
            heads: Bounds of its end.
            limits: Of the batch.

        Raises:
            FramingError: content is no messages.
            ServiceError: a journal cannot be read.
        """
        journals = self._rotated(heads)
        begin = {**dict.fromkeys(journals, AT_THE_BEGINNING), **start}
        end = dict(begin)
        await self._plan_shares(journals, end, heads=heads, limits=limits)
        if end != begin:
            return end
        # No journal moved on: there is nothing new, or a transaction is larger than its share and is taken alone.
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
            ServiceError: a journal cannot be read.
        """
        batches = {
            name: await self._batch_between(name, span.start_of(name), span.end[name])
            for name in span.names
        }
        wanted = sum(int((batch.ends - batch.begins).sum()) for batch in batches.values())
        bytes_max = min(self._options.partition_bytes, _equal_part(wanted, self._options))
        return [
            partition
            for name, batch in batches.items()
            for partition in (
                *partitions_of(
                    name,
                    batch.begins,
                    batch.ends,
                    bytes_max=bytes_max,
                    whole=_compressed(self._stored.get(name, ())),
                ),
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
        limits: MicroBatchLimits,
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
            del self._scanners[name]  # it has moved on, and cannot go back
            raise
        self._planned[name] = _Planned(start, batch)
        return batch

    async def _batch_between(
        self, name: str, start: JournalState, end: JournalState
    ) -> ScannedBatch:
        planned = self._planned.get(name)
        # Spark asks for partitions right after it asked for the end, so the scan is usually done.
        if planned is not None and planned.start == start and planned.batch.end == end:
            return planned.batch
        return await self._plan_one(name, start, head=end.offset, limits=NO_LIMITS)

    def _scanner(self, name: str, state: JournalState) -> JournalScanner:
        scanner = self._scanners.get(name)
        if scanner is None or scanner.state != state:
            scanner = self._new_scanner(name, state)
            self._scanners[name] = scanner
        return scanner

    def _new_scanner(self, name: str, state: JournalState) -> JournalScanner:
        options, content_type = self._options, self._content_types[name]
        reader = TableReader(
            self._client,
            name,
            new_tables=partial(tables_for, name, content_type, options),
            gaps_allowed=not options.fail_on_data_loss,
            stored=self._stored.get(name, ()),
        )
        scan = CommitScan(
            state,
            stretch_bytes=_stretch_bytes(options),
            keep_damaged=options.mode is ReadMode.PERMISSIVE,
        )
        return JournalScanner(reader, scan, state=state, on_table=self._clocks.on_table)

    def _rotated(self, heads: Heads) -> list[str]:
        """Return the journals in rotating order, so that none is always served last."""
        journals = sorted(heads.keys() & self._content_types.keys())
        if not journals:
            return []
        self._first = (self._first + 1) % len(journals)
        return journals[self._first :] + journals[: self._first]


async def batch_span(client: JournalClient, start: States, options: ReadOptions) -> BatchSpan:
    """Return the span of a batch read: to the current write heads, or to the option's offsets.

    Only the offsets of the end count, because the scan finds the producers' states.

    Raises:
        OptionError: the option has no offset for a journal, or one that it has not reached.
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
    """Return the length of stretches, which bounds how finely partitions can be cut."""
    cuts_finely = options.partitions_min is not None and options.partitions_min > 1
    bytes_max = _SHORT_STRETCH_BYTES_MAX if cuts_finely else _STRETCH_BYTES_MAX
    return max(1, min(bytes_max, options.partition_bytes // _STRETCHES))


def _equal_part(wanted_bytes: int, options: ReadOptions) -> int:
    """Return the bytes of one of the least number of partitions."""
    if options.partitions_min is not None:
        return max(1, wanted_bytes // options.partitions_min)
    # The number of the cluster's processors is not told to a source. On one machine, this uses them all.
    processors = os.cpu_count() or 1
    # A stretch more, because stretches are not cut: a small last partition would be left over.
    return max(SMALL_PARTITION_BYTES, -(-wanted_bytes // processors) + _STRETCH_BYTES_MAX)


def _share(limit: int, used: int, left: int) -> int:
    """Return a journal's share of the rest of a limit."""
    return limit if limit == UNLIMITED else max(0, -(-(limit - used) // left))


async def stored_fragments(
    client: JournalClient, span: BatchSpan, options: ReadOptions
) -> dict[str, Stored]:
    """Return the stored fragments of each journal that a batch read covers, with URLs."""
    access = options.access.fragments
    if not access.enabled:
        return {}
    stored: dict[str, Stored] = {}
    for name in span.names:
        listed = await client.list_fragments(name, signature_ttl_seconds=access.url_seconds)
        begin, end = span.start_of(name).offset, span.end[name].offset
        stored[name] = [
            each
            for each in listed
            if each.signed_url and begin < each.spec.end and each.spec.begin < end
        ]
    return stored


def _compressed(stored: Stored) -> WholeSpans:
    return WholeSpans(
        (each.spec.begin, each.spec.end)
        for each in stored
        if each.spec.compression_codec != CompressionCodec.NONE
    )


def _with_stored(partition: BytePartition, stored: Stored) -> BytePartition:
    """Return the partition with the fragments that hold its bytes."""
    held = tuple(
        each.SerializeToString()
        for each in stored
        if partition.begin < each.spec.end and each.spec.begin < partition.end
    )
    return replace(partition, stored=held)


async def batch_partitions(options: ReadOptions) -> list[JournalPartition]:
    """Plan a batch read: return the partitions of all messages committed between the options' start and end.

    Raises:
        OptionError: no journal is selected, or start or end names another one, or an offset that is not reached.
        FramingError: content is no messages.
        ServiceError: the journals cannot be listed or read.
    """
    keep_freed_buffers()
    async with open_client(options.access, patience_seconds=PATIENCE_SECONDS) as client:
        content_types = await selected_journals(client, options)
        if not content_types:
            raise OptionError(
                "selector", "a selector of at least one journal", got=options.selector
            )
        start = await states_at(client, options.start, content_types=content_types, options=options)
        span = await batch_span(client, start, options)
        stored = await stored_fragments(client, span, options)
        planner = Planner(client, options, stored)
        planner.select(content_types)
        return [
            JournalPartition(
                _with_stored(each, stored.get(each.journal, ())), content_types[each.journal]
            )
            for each in await planner.partitions(span)
        ]
