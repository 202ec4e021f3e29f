"""Mints UUIDs for many messages at once, as NumPy columns: one producer, growing clocks.

The bits are those of `broadsheet.consumer.message.uuid.build_uuid`, which is the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from broadsheet.consumer.message.uuid import (
    CLOCK_UNITS_PER_MESSAGE,
    Flags,
    build_uuid,
    clock_at,
    format_uuid,
)

Bytes = npt.NDArray[np.uint8]

UUID_CHARACTERS: Final = 36
_UUID_BYTES: Final = 16
_TIME_LOW_BYTES: Final = 4

_HEX_PAIRS: Final = np.frombuffer(
    b"".join(b"%02x" % value for value in range(256)), dtype=np.uint16
)
_HEX_QUADS: Final = np.frombuffer(
    b"".join(b"%04x" % value for value in range(65536)), dtype=np.uint32
)
# (first digit, digits, place in the text) of each group of a UUID's text.
_GROUPS: Final = ((0, 8, 0), (8, 4, 9), (12, 4, 14), (16, 4, 19), (20, 12, 24))


class Stamper:
    """Mints the UUIDs of one producer. Used by one thread at a time."""

    def __init__(self, producer: int, *, now: Callable[[], int] = time.time_ns) -> None:
        """Create a producer.

        Args:
            producer: Its unique 48-bit id.
            now: Wall time, nanoseconds since the Unix epoch.
        """
        self.producer = producer
        self._now = now
        self._clock = 0

    def stamp_messages(self, count: int) -> Bytes:
        """Return UUIDs of messages within a transaction, in the order of their clocks; shape (count, 16)."""
        # Clocks grow even if the wall clock is set back.
        before = max(self._clock, clock_at(self._now()))
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(CLOCK_UNITS_PER_MESSAGE)
        self._clock = before + count * CLOCK_UNITS_PER_MESSAGE
        return uuid_bytes(self.producer, steps + np.uint64(before), Flags.CONTINUE_TXN)

    def stamp_acknowledgement(self) -> bytes:
        """Return the UUID of an acknowledgement of every message so far, 16 bytes; it serves every journal."""
        self._clock += CLOCK_UNITS_PER_MESSAGE
        return build_uuid(self.producer, self._clock, Flags.ACK_TXN)


def uuid_bytes(producer: int, clocks: npt.NDArray[np.uint64], flags: int) -> Bytes:
    """Return the UUIDs of a producer at clocks of shape (N,); shape (N, 16)."""

    def u64(value: int) -> np.uint64:
        return np.uint64(value)

    time_low = (clocks >> u64(4)) & u64(0xFFFFFFFF)
    time_middle = (clocks >> u64(36)) & u64(0xFFFF)
    time_high = clocks >> u64(52)
    halves = np.empty((len(clocks), 2), dtype=">u8")
    halves[:, 0] = time_low << u64(32) | time_middle << u64(16) | u64(0x1000) | time_high
    sequence = (clocks & u64(0xF)) << u64(10) | u64(0x8000 | flags)
    halves[:, 1] = sequence << u64(48) | u64(producer)
    return halves.view(np.uint8)


def uuid_texts(uuids: Bytes, *, before: bytes = b"", after: bytes = b"") -> Bytes:
    """Return the text form of each UUID, with the same bytes before and after each.

    Args:
        uuids: Shape (N, 16).
        before: Put before each.
        after: Put after each.

    Returns:
        Shape (N, len(before) + 36 + len(after)).
    """
    template = np.empty(len(before) + UUID_CHARACTERS + len(after), dtype=np.uint8)
    template[:] = np.frombuffer(before + b"-" * UUID_CHARACTERS + after, dtype=np.uint8)
    place = len(before)
    # UUIDs of one batch mostly differ only in their first bytes, so the others are written once for all.
    varying = _varying_bytes(uuids)
    if varying < _UUID_BYTES:
        _write_digits(template[None, :], uuids[:1], place=place)
    texts = np.empty((len(uuids), len(template)), dtype=np.uint8)
    texts.view(f"V{len(template)}")[:] = template.view(f"V{len(template)}")
    if varying < _UUID_BYTES:
        _write_first_digits(texts, uuids, place=place)
    else:
        _write_digits(texts, uuids, place=place)
    return texts


def first_digits(uuids: Bytes) -> tuple[Bytes, bytes] | None:
    """Return the text forms of UUIDs as the 8 digits that differ, shape (N, 8), and their common rest.

    None if the UUIDs differ elsewhere, or there are none.
    """
    if _varying_bytes(uuids) == _UUID_BYTES:
        return None
    digits = _first_digits(uuids).view(np.uint8).reshape(len(uuids), 2 * _TIME_LOW_BYTES)
    return digits, format_uuid(uuids[0].tobytes())[2 * _TIME_LOW_BYTES :].encode()


def _varying_bytes(uuids: Bytes) -> int:
    """Return 4 if only the first 4 bytes (the low part of the time) differ, else all."""
    if not len(uuids):
        return _UUID_BYTES
    words, halves = uuids.view(np.uint32), uuids.view(np.uint64)
    if (words[:, 1] != words[0, 1]).any() or (halves[:, 1] != halves[0, 1]).any():
        return _UUID_BYTES
    return _TIME_LOW_BYTES


def _write_first_digits(texts: Bytes, uuids: Bytes, *, place: int) -> None:
    """Write the 8 digits of the first 4 bytes of UUIDs into texts from `place` on."""
    count, width = texts.shape
    np.ndarray((count,), np.uint64, texts, place, (width,))[:] = _first_digits(uuids)


def _first_digits(uuids: Bytes) -> npt.NDArray[np.uint64]:
    """Return the 8 digits of the first 4 bytes of each UUID, as one number; shape (N,)."""
    numbers = np.ascontiguousarray(uuids.view(np.uint32)[:, 0]).view(">u2")
    digits: npt.NDArray[np.uint64] = _HEX_QUADS[numbers].view(np.uint64)
    return digits


def _write_digits(texts: Bytes, uuids: Bytes, *, place: int) -> None:
    """Write the digits of UUIDs, shape (N, 16), into texts from `place` on."""
    digits = _HEX_PAIRS[uuids].view(np.uint8)
    for first, count, group_place in _GROUPS:
        begin = place + group_place
        texts[:, begin : begin + count] = digits[:, first : first + count]
