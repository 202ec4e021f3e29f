"""Scans one journal of a broker, as far as a micro-batch goes. Driver only."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from consumer.journal.client import JournalClient
from spark_bridge.journal_source.codecs import Tables
from spark_bridge.journal_source.commit_scan import CommitScan, Replay, ScanLimits, ScannedBatch
from spark_bridge.journal_source.errors import JournalBytesGoneError
from spark_bridge.journal_source.journal_state import JournalState
from spark_bridge.journal_source.message_table import MessageTable

FEED_BYTES: Final = 1 << 20
"""Content looked at together: less costs time, more costs memory."""


class JournalScanner:
    """Goes over one journal, micro-batch by micro-batch."""

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        *,
        new_tables: Callable[[], Tables],
        state: JournalState,
        gaps_allowed: bool,
        stretch_bytes: int,
        keep_damaged: bool = False,
        on_table: Callable[[str, MessageTable], None],
    ) -> None:
        """Go on from a state.

        Args:
            client: Reads the journal.
            journal: Its name.
            new_tables: Returns what finds its messages, one for each read.
            state: Where an earlier scan ended, or a bare offset.
            gaps_allowed: Whether bytes may be gone that were not seen yet.
            stretch_bytes: Of the stretches of messages that are found.
            keep_damaged: Whether records that are no messages are wanted.
            on_table: Told of the journal's messages as they are read for the first time; what it raises ends the read.
        """
        self._client = client
        self._journal = journal
        self._new_tables = new_tables
        self._gaps_allowed = gaps_allowed
        self._on_table = on_table
        self._scan = CommitScan(state, stretch_bytes=stretch_bytes, keep_damaged=keep_damaged)
        self.state = state
        """Where the next micro-batch begins."""

    async def next_batch(self, head: int, limits: ScanLimits) -> ScannedBatch:
        """Return the next micro-batch.

        Args:
            head: Where the journal ends, bytes.
            limits: Of the batch.

        Raises:
            JournalBytesGoneError: the journal lost bytes that were to be read.
            FramingError: content is no messages.
            ConsumerError: the journal cannot be read.
        """
        scan = self._scan
        scan.begin(limits)
        if await self._advance() and scan.position < head:
            async with aclosing(self._read(scan.position, head)) as tables:
                async for table in tables:
                    self._on_table(self._journal, table)
                    scan.feed(table)
                    if not await self._advance():
                        break
        batch = scan.finish(time.monotonic())
        self.state = batch.end
        return batch

    async def _advance(self) -> bool:
        """Go over what was fed; return whether there is room for more."""
        self._scan.advance()
        while self._scan.replay is not None:
            await self._read_again(self._scan.replay)
            self._scan.end_replay()
            self._scan.advance()
        return not self._scan.full

    async def _read_again(self, replay: Replay) -> None:
        async with aclosing(self._read(replay.begin, replay.end)) as tables:
            async for table in tables:
                self._scan.feed_replay(table)

    async def _read(self, begin: int, end: int) -> AsyncGenerator[MessageTable, None]:
        """Yield the messages that stand in [begin, end), bytes."""
        finder = self._new_tables()
        chunks: list[bytes] = []
        size, expected = 0, begin
        finder.restart(begin)
        async with self._client.reader(
            self._journal, offset=begin, block=False, end_offset=end
        ) as reader:
            async for span in reader:
                if span.offset != expected:
                    self._check_gap(expected, span.offset)
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
        """Refuse a gap, but for the one before a journal's first byte of today."""
        if begin > 0 and not self._gaps_allowed:
            raise JournalBytesGoneError(self._journal, begin, end)
