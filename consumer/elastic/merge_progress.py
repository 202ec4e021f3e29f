"""How far a merge is, as a message. Pure."""

from __future__ import annotations

from broadsheet.consumer.elastic.merge import MergePhase, MergeRecord
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit

UNKNOWN = -1


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


def _seconds(left: int, rate: float) -> float:
    if left == 0:
        return 0.0
    return left / rate if left > 0 and rate > 0 else UNKNOWN
