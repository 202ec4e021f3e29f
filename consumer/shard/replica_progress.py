"""Progress of this process's replicas and their remaining work, as a table."""

from __future__ import annotations

from collections.abc import Iterable

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.playback import PlaybackProgress
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.metrics import FOLLOWING
from broadsheet.consumer.shard.stall_watch import write_heads
from broadsheet.consumer.stores.keyed_queries import KeyedCounts, KeyedQueryStore
from broadsheet.journals.client import JournalClient
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.state_pb2 import KeyedProgress, ReplicaProgress

HEADS_SECONDS_MAX = 5.0
"""Longest wait for the brokers to tell how much there is to read, for all sources together."""

UNKNOWN = -1


async def progress_of(
    shards: Iterable[LiveShard], journals: JournalClient, *, reads_journals: bool
) -> list[ReplicaProgress]:
    """Return the progress of each of `shards`.

    Args:
        shards: Of this process.
        journals: Tells the heads of their sources.
        reads_journals: Whether their sources are journals; an application may bring messages from elsewhere.
    """
    looked_at = list(shards)
    serving = [shard for shard in looked_at if shard.primary and shard.is_ready]
    sources = {_journal(source) for shard in serving for source in shard.spec.sources}
    heads = await write_heads(
        journals, sorted(sources) if reads_journals else [], timeout_seconds=HEADS_SECONDS_MAX
    )
    return [
        _of_primary(shard, heads) if shard in serving else _of_standby(shard) for shard in looked_at
    ]


def _of_primary(shard: LiveShard, heads: dict[str, int]) -> ReplicaProgress:
    read_through, publish_at = shard.progress()
    progress = ReplicaProgress(
        shard=shard.id,
        slot=shard.assignment.slot,
        read_through=read_through,
        publish_at=publish_at,
        keyed=_keyed(shard),
        operations=operations_of(shard),
    )
    # A head below the offset that was read belongs to another life of the journal: the difference
    # is not a lag.
    if any(
        heads.get(_journal(source), UNKNOWN) < read_through.get(source.journal, 0)
        for source in shard.spec.sources
    ):
        progress.behind_bytes, progress.behind_seconds = UNKNOWN, UNKNOWN
        return progress
    progress.behind_bytes = sum(
        # Content below the lower bound is never read.
        max(
            0, heads[_journal(source)] - max(read_through.get(source.journal, 0), source.min_offset)
        )
        for source in shard.spec.sources
    )
    progress.behind_seconds = UNKNOWN if progress.behind_bytes else 0.0
    return progress


def keyed_counts(shard: LiveShard) -> KeyedCounts | None:
    """Return what a primary's keyed state amounts to, on any thread; None if it has none, or leaves at this moment."""
    store = shard.store
    if store is None or not isinstance(store, KeyedQueryStore):
        return None
    try:
        return store.counts()
    except StoreError:
        return None


def _keyed(shard: LiveShard) -> KeyedProgress | None:
    counts = keyed_counts(shard)
    if counts is None:
        return None
    return KeyedProgress(
        rows=counts.rows,
        state_bytes=counts.state_bytes,
        watermark_ms=counts.watermark_ms,
        next_timer_ms=counts.next_timer_ms,
        late_rows=counts.late_rows,
    )


def _journal(source: ShardSpec.Source) -> str:
    """Return the journal's name without the suffix that distinguishes readers."""
    return source.journal.partition(";")[0]


def _of_standby(shard: LiveShard) -> ReplicaProgress:
    """Return the progress of a replica that does not serve: a standby, or a primary that still recovers."""
    progress = ReplicaProgress(
        shard=shard.id, slot=shard.assignment.slot, operations=operations_of(shard)
    )
    playback = shard.playback
    if playback is None:
        # Without a log there is no backlog, and a primary that is not ready has not begun.
        progress.behind_bytes = progress.behind_seconds = UNKNOWN if shard.primary else 0
        return progress
    seconds = playback.behind_seconds
    progress.behind_bytes = playback.behind_bytes
    progress.behind_seconds = UNKNOWN if seconds is None else seconds
    return progress


def operations_of(shard: LiveShard) -> list[Progress]:
    """Return the longer operations of a replica: the playback of its log, and its part in a split or a merge."""
    operations = []
    if shard.playback is not None and not (shard.primary and shard.is_ready):
        operations.append(playback_progress(shard.id, shard.playback))
    key_change = shard.key_change
    if key_change is not None:
        operations.append(key_change)
    return operations


def playback_progress(shard_id: str, playback: PlaybackProgress) -> Progress:
    """Return the progress of a recovery log's playback, bytes.

    Args:
        shard_id: The log's shard.
        playback: By this replica.
    """
    seconds = playback.behind_seconds
    return Progress(
        kind=ProgressKind.PROGRESS_KIND_PLAYBACK,
        subject=shard_id,
        # Behind the head a standby follows what the primary goes on to write.
        phase=FOLLOWING if playback.tailing else "playing",
        done=playback.played_bytes,
        to_do=playback.behind_bytes,
        unit=ProgressUnit.PROGRESS_UNIT_BYTES,
        rate=playback.bytes_per_second,
        eta_s=UNKNOWN if seconds is None else seconds,
    )
