"""Progress of a split or a merge, as a message. Pure."""

from __future__ import annotations

from broadsheet.consumer.elastic.fork import ForkPhase, ForkRecord, PurgeProgress
from broadsheet.consumer.elastic.merge import MergePhase, MergeRecord
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit

UNKNOWN = -1


def purge_progress(shard_id: str, purge: PurgeProgress) -> Progress:
    """Return how far one shard is with the rows of others, groups of keys.

    Args:
        shard_id: A parent, or a child.
        purge: Of it.
    """
    return Progress(
        kind=ProgressKind.PROGRESS_KIND_SPLIT,
        subject=shard_id,
        phase=ForkPhase.PURGING.value,
        done=purge.done,
        to_do=purge.left,
        unit=ProgressUnit.PROGRESS_UNIT_GROUPS,
        rate=purge.groups_per_second,
        eta_s=_seconds(purge.left, purge.groups_per_second),
    )


def split_progress(child: str, record: ForkRecord) -> Progress:
    """Return the progress of a split in its present phase.

    following, holding   bytes of the parent's log, which the child plays
    purging              groups of keys whose rows the parent and the child have still to remove, together

    Args:
        child: Id of the new shard.
        record: Of the split.
    """
    if record.phase is ForkPhase.PURGING:
        return _purging(child, record)
    rate, left = record.bytes_per_second, record.behind_bytes
    return Progress(
        kind=ProgressKind.PROGRESS_KIND_SPLIT,
        subject=child,
        phase=record.phase.value,
        done=record.done_bytes,
        to_do=left,
        unit=ProgressUnit.PROGRESS_UNIT_BYTES,
        rate=rate,
        eta_s=_seconds(left, rate),
    )


def merge_progress(survivor: str, record: MergeRecord) -> Progress:
    """Return the progress of a merge: rows that the survivor takes in, as long as it copies.

    Args:
        survivor: Its id.
        record: Of the merge.
    """
    left = record.left_rows if record.phase is MergePhase.COPYING else 0
    return Progress(
        kind=ProgressKind.PROGRESS_KIND_MERGE,
        subject=survivor,
        phase=record.phase.value,
        done=record.done_rows,
        to_do=left,
        unit=ProgressUnit.PROGRESS_UNIT_ROWS,
        rate=record.rate,
        eta_s=_seconds(left, record.rate),
    )


def _purging(child: str, record: ForkRecord) -> Progress:
    waiting = {record.parent, child} - set(record.purged)
    known = [each for shard_id, each in record.purging.items() if shard_id in waiting]
    progress = Progress(
        kind=ProgressKind.PROGRESS_KIND_SPLIT,
        subject=child,
        phase=record.phase.value,
        done=sum(each.done for each in record.purging.values()),
        to_do=sum(each.left for each in known),
        unit=ProgressUnit.PROGRESS_UNIT_GROUPS,
        rate=sum(each.groups_per_second for each in known),
        # Each shard removes its own, at once.
        eta_s=max((_seconds(each.left, each.groups_per_second) for each in known), default=0.0),
    )
    if len(known) < len(waiting):
        progress.to_do = progress.eta_s = UNKNOWN
    elif any(_seconds(each.left, each.groups_per_second) < 0 for each in known):
        progress.eta_s = UNKNOWN
    return progress


def _seconds(left: int, rate: float) -> float:
    if not left:
        return 0.0
    return left / rate if left > 0 and rate > 0 else UNKNOWN
