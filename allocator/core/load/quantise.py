"""Loads in steps of equal ratio: what differs by less than a step is the same.

Bucket `b` stands for `ratio ** b`. A value between two buckets stays in the one it was in, so noise about a border
moves nothing.
"""

from __future__ import annotations

from math import log

HOLD_STEPS = 0.75
"""Steps from a bucket's middle at which it is left; above one half, so that neighbours overlap."""
IDLE = None
"""The bucket of values too small to matter."""

Bucket = int | None


def bucket_of(value: float, ratio: float, *, least: float) -> Bucket:
    """Return the bucket nearest to a value; `IDLE` below `least`."""
    return IDLE if value < least else round(log(value, ratio))


def held_bucket(previous: Bucket, value: float, ratio: float, *, least: float) -> Bucket:
    """Return the bucket of a value that was in `previous` before, which it leaves only for a clear difference."""
    if previous is IDLE:
        # Half a step above, and it is idle no more.
        return bucket_of(value, ratio, least=least * ratio**0.5)
    if value < least / ratio**0.5:
        return IDLE
    return previous if abs(log(value, ratio) - previous) <= HOLD_STEPS else round(log(value, ratio))


def value_of(bucket: Bucket, ratio: float) -> float:
    """Return what a bucket stands for; 0 for `IDLE`."""
    return 0.0 if bucket is IDLE else ratio**bucket
