"""Drives a commit scan over a journal in memory, as the journal source does over a real one."""

from __future__ import annotations

from spark_bridge.journal_source.commit_scan import (
    NO_LIMITS,
    CommitScan,
    JournalState,
    ScanLimits,
    ScannedBatch,
)
from tests.support.sequencing import Log

RING_MESSAGES = 100


def scan_on(
    scan: CommitScan,
    log: Log,
    *,
    head: int,
    limits: ScanLimits = NO_LIMITS,
    chunk_messages: int = 3,
) -> ScannedBatch:
    """Return the next micro-batch of a journal whose write head is `head`, read in chunks."""
    scan.begin(limits)
    _drain(scan, log)
    while not scan.full:
        rest = log.between(scan.position, head)
        if not len(rest):
            break
        batch = scan.admitted(rest.span(0, min(chunk_messages, len(rest))))
        index = 0
        while index < len(batch):
            index = scan.queue(batch, index)
            _drain(scan, log)
            if scan.full and scan.emitting:
                break
    return scan.finish()


def plan_again(log: Log, start: JournalState, end: JournalState) -> ScannedBatch:
    """Return the micro-batch between two states, planned from nothing else."""
    return scan_on(CommitScan(log.journal, start, ring_messages=1), log, head=end.offset)


def _drain(scan: CommitScan, log: Log) -> None:
    while scan.emitting:
        wanted = scan.replay_range()
        if wanted is not None:
            scan.feed_replay(log.between(wanted.begin, wanted.end))
            scan.end_replay()
        if not scan.emitting or not scan.take():
            return
