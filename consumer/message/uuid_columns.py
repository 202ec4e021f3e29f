"""The UUIDs of many messages at once: sequencing reads columns."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from consumer.message.uuid import (
    FLAGS_MAX,
    PRODUCER_MASK,
    VARIANT_RFC4122,
    VERSION_1,
    VERSION_MASK,
    parse_uuid,
)

UUID_BYTES: Final = 16
FEW: Final = 32
"""So many are parsed one by one in the time that it takes to set up arrays."""


class UuidColumns(NamedTuple):
    """What N UUIDs say, as columns of shape (N,)."""

    producers: list[int]
    clocks: list[int]
    flags: list[int]


def parse_uuids(uuids: bytes) -> UuidColumns:
    """Return the columns of N UUIDs that lie one after the other; see `parse_uuid`.

    Requires:
        `len(uuids)` is a multiple of 16.
    """
    if len(uuids) > FEW * UUID_BYTES:
        return _parse_many(uuids)
    columns = UuidColumns([], [], [])
    for begin in range(0, len(uuids), UUID_BYTES):
        producer, clock, flags = parse_uuid(uuids[begin : begin + UUID_BYTES])
        columns.producers.append(producer)
        columns.clocks.append(clock)
        columns.flags.append(flags)
    return columns


def _parse_many(uuids: bytes) -> UuidColumns:
    """Parse in a few passes over arrays of 64-bit halves."""
    halves = np.frombuffer(uuids, dtype=">u8").astype(np.uint64).reshape(-1, 2)
    high, low = halves[:, 0], halves[:, 1]
    ours = (high & VERSION_MASK == VERSION_1) & (low >> 62 == VARIANT_RFC4122)
    if not ours.all():
        high, low = np.where(ours, high, 0), np.where(ours, low, 0)
    clocks = (
        ((high & 0xFFF) << 52) | ((high & 0xFFFF0000) << 20) | (high >> 32 << 4) | (low >> 58 & 0xF)
    )
    return UuidColumns(
        (low & PRODUCER_MASK).tolist(), clocks.tolist(), (low >> 48 & FLAGS_MAX).tolist()
    )
