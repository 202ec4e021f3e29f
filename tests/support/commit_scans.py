"""Drives a commit scan over a journal in memory, as the journal source does over a real one."""

from __future__ import annotations

from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import build_uuid
from broadsheet.spark_bridge.journal_source.commit_scan import (
    NO_LIMITS,
    CommitScan,
    ScanLimits,
    ScannedBatch,
)
from broadsheet.spark_bridge.journal_source.journal_state import JournalState
from broadsheet.spark_bridge.journal_source.message_table import MessageTable, table_of
from tests.support.sequencing import Log


def table_of_batch(batch: MessageBatch) -> MessageTable:
    """Return a batch's messages without their payloads."""
    numbers = (batch.producers, batch.clocks, batch.flags)
    columns = zip(*(column.tolist() for column in numbers), strict=True)
    return table_of(batch.begins, batch.ends, b"".join(build_uuid(*each) for each in columns))


def scan_on(
    scan: CommitScan,
    log: Log,
    *,
    head: int,
    limits: ScanLimits = NO_LIMITS,
    chunk_messages: int = 3,
    now_seconds: float | None = None,
) -> ScannedBatch:
    """Return the next micro-batch of a journal whose write head is `head`, read in chunks."""
    scan.begin(limits)
    while not scan.full:
        scan.advance()
        if scan.replay is not None:
            scan.feed_replay(table_of_batch(log.between(scan.replay.begin, scan.replay.end)))
            scan.end_replay()
        elif not scan.full:
            rest = log.between(scan.position, head)
            if not len(rest):
                break
            scan.feed(table_of_batch(rest.span(0, min(chunk_messages, len(rest)))))
    return scan.finish(now_seconds) if now_seconds is not None else scan.finish()


def plan_again(log: Log, start: JournalState, end: JournalState) -> ScannedBatch:
    """Return the micro-batch between two states, planned from nothing else."""
    return scan_on(CommitScan(start, stretch_bytes=1, pending_bytes=1), log, head=end.offset)
