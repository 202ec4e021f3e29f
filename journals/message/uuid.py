"""The UUID of every sequenced message: its producer, its clock and its transaction flags.

It is an RFC 4122 version-1 UUID. Its 60-bit timestamp and 4 bits of its sequence form the *clock*, the other 10 bits of
the sequence are *flags*, its node is the *producer*. Clocks of one producer only grow within a journal, so a reader can
drop duplicates and roll back what was never acknowledged.

    bytes 0-3   clock bits 4..35        bytes 6-7   version 1 | clock bits 52..63
    bytes 4-5   clock bits 36..51       bytes 8-9   variant 10 | clock bits 0..3 | flags
                                        bytes 10-15 producer

Source: gazette/core message/uuid.go (layout and constants); RFC 4122 §4.1.2.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray


class Flags:
    """The role of a message in its transaction; ignored if its clock is zero, which opts it out of sequencing."""

    OUTSIDE_TXN: Final = 0
    """Committed by itself."""
    CONTINUE_TXN: Final = 1
    """Part of a transaction that a later acknowledgement commits."""
    ACK_TXN: Final = 2
    """Commits every earlier message of its producer in its journal up to its clock, or rolls them back."""


FLAGS_MAX: Final = 0x3FF
"""Flags are 10 bits wide."""
PRODUCER_BYTES: Final = 6
NIL_UUID: Final = bytes(16)
"""Opts a message out of sequencing: always delivered, never de-duplicated."""
_MULTICAST_BIT: Final = 1 << 40
"""Lowest bit of a producer's first byte: RFC 4122 requires it to be set if the node is not a network card's address."""
PRODUCER_MASK: Final = (1 << 48) - 1
VERSION_MASK: Final = 0xF000
VERSION_1: Final = 0x1000
VARIANT_RFC4122: Final = 0b10
_HALVES = struct.Struct(">QQ")


def new_producer_id(random_bytes: Callable[[int], bytes] = os.urandom) -> int:
    """Return a fresh 48-bit producer id with 47 bits of entropy."""
    return int.from_bytes(random_bytes(PRODUCER_BYTES), "big") | _MULTICAST_BIT


def build_uuid(producer: int, clock: int, flags: int) -> bytes:
    """Return the 16 bytes of a message's UUID.

    Requires:
        `producer` fits 48 bits, `clock` 64 bits, `flags` 10 bits.
    """
    assert 0 <= flags <= FLAGS_MAX, f"flags {flags:#x} exceed {FLAGS_MAX:#x}"
    time_low = (clock >> 4) & 0xFFFFFFFF
    time_mid = (clock >> 36) & 0xFFFF
    time_high = clock >> 52
    sequence = (VARIANT_RFC4122 << 14) | ((clock & 0xF) << 10) | flags
    return _HALVES.pack(
        (time_low << 32) | (time_mid << 16) | VERSION_1 | time_high, (sequence << 48) | producer
    )


def parse_uuid(uuid: bytes) -> tuple[int, int, int]:
    """Return (producer, clock, flags) of a 16-byte UUID; all zero if no publisher can have made it.

    They are zero because a UUID of another version has no clock. Reading one from its random bits could make a message
    look like a duplicate and lose it; a zero clock delivers it.
    """
    high, low = _HALVES.unpack(uuid)
    if high & VERSION_MASK != VERSION_1 or low >> 62 != VARIANT_RFC4122:
        return 0, 0, 0
    clock = (
        ((high & 0xFFF) << 52) | ((high & 0xFFFF0000) << 20) | (high >> 32 << 4) | (low >> 58 & 0xF)
    )
    return low & PRODUCER_MASK, clock, low >> 48 & FLAGS_MAX


def format_uuid(uuid: bytes) -> str:
    """Return the 36-character text form of a 16-byte UUID."""
    digits = uuid.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


UUID_BYTES: Final = 16
FEW: Final = 32
"""Number of UUIDs that are parsed one by one in the time it takes to set up arrays."""


Words: TypeAlias = NDArray[np.uint64]
FlagWords: TypeAlias = NDArray[np.uint16]
Bytes: TypeAlias = NDArray[np.uint8]


class UuidColumns(NamedTuple):
    """The fields of N UUIDs, as columns of shape (N,)."""

    producers: Words
    clocks: Words
    flags: FlagWords


def parse_uuids(uuids: bytes) -> UuidColumns:
    """Return the columns of N concatenated UUIDs; see `parse_uuid`.

    Requires:
        `len(uuids)` is a multiple of 16.
    """
    if len(uuids) > FEW * UUID_BYTES:
        return _parse_many(uuids)
    fields = [
        parse_uuid(uuids[begin : begin + UUID_BYTES]) for begin in range(0, len(uuids), UUID_BYTES)
    ]
    return UuidColumns(
        np.array([producer for producer, _, _ in fields], dtype=np.uint64),
        np.array([clock for _, clock, _ in fields], dtype=np.uint64),
        np.array([flags for _, _, flags in fields], dtype=np.uint16),
    )


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
    producers = (low & PRODUCER_MASK).astype(np.uint64, copy=False)
    flags = (low >> 48 & FLAGS_MAX).astype(np.uint16)
    return UuidColumns(producers, clocks.astype(np.uint64, copy=False), flags)


UNIX_EPOCH_TICKS: Final = 122_192_928_000_000_000
"""100 ns ticks from the UUID epoch (1582-10-15) to the Unix epoch; RFC 4122 §4.1.4."""
CLOCK_UNITS_PER_SECOND: Final = 10_000_000 << 4
CLOCK_UNITS_PER_MESSAGE: Final = 10 << 4
"""One microsecond: a producer of more than a million messages a second runs ahead of wall time."""


def clock_at(unix_nanoseconds: int) -> int:
    """Return the clock of a wall time, nanoseconds since the Unix epoch, cut to 100 ns."""
    return (unix_nanoseconds // 100 + UNIX_EPOCH_TICKS) << 4


def unix_seconds_of(clock: int) -> float:
    """Return the wall time of a clock, seconds since the Unix epoch."""
    return ((clock >> 4) - UNIX_EPOCH_TICKS) / 10_000_000


class MessageClock:
    """Source of strictly increasing clocks. Used by one thread at a time.

    It follows wall time while that advances, and adds one microsecond per message while it does not. A value is a count
    of 100 ns ticks since 1582-10-15, shifted left by 4 bits. It never decreases.

    Source: gazette/core message/uuid.go (Clock).
    """

    def __init__(self) -> None:
        self._value = 0

    @property
    def value(self) -> int:
        """The last clock issued, or the wall time that it was advanced to."""
        return self._value

    def update(self, unix_seconds: float) -> None:
        """Advance to a wall time, seconds since the Unix epoch; never back."""
        self.update_nanoseconds(int(unix_seconds * 1e9))

    def update_nanoseconds(self, unix_nanoseconds: int) -> None:
        """Advance to a wall time, nanoseconds since the Unix epoch; never back."""
        self._value = max(self._value, clock_at(unix_nanoseconds))

    def tick(self) -> int:
        """Return the next clock."""
        self._value += CLOCK_UNITS_PER_MESSAGE
        return self._value

    def tick_many(self, count: int) -> Words:
        """Return the next clocks, growing; shape (count,)."""
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(CLOCK_UNITS_PER_MESSAGE)
        clocks = steps + np.uint64(self._value)
        self._value += count * CLOCK_UNITS_PER_MESSAGE
        return clocks


# Many UUIDs of one producer as columns. `build_uuid` and `format_uuid` are the reference.

UUID_CHARACTERS: Final = 36
_TIME_LOW_BYTES: Final = 4

_HEX_PAIRS: Final = np.frombuffer(
    b"".join(b"%02x" % value for value in range(256)), dtype=np.uint16
)
_HEX_QUADS: Final = np.frombuffer(
    b"".join(b"%04x" % value for value in range(65536)), dtype=np.uint32
)
# (first digit, digits, place in the text) of each group of a UUID's text.
_GROUPS: Final = ((0, 8, 0), (8, 4, 9), (12, 4, 14), (16, 4, 19), (20, 12, 24))


def uuid_bytes(producer: int, clocks: NDArray[np.uint64], flags: int) -> Bytes:
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
    if varying < UUID_BYTES:
        _write_digits(template[None, :], uuids[:1], place=place)
    texts = np.empty((len(uuids), len(template)), dtype=np.uint8)
    texts.view(f"V{len(template)}")[:] = template.view(f"V{len(template)}")
    if varying < UUID_BYTES:
        _write_first_digits(texts, uuids, place=place)
    else:
        _write_digits(texts, uuids, place=place)
    return texts


def first_digits(uuids: Bytes) -> tuple[Bytes, bytes] | None:
    """Return the text forms of UUIDs as the 8 digits that differ, shape (N, 8), and their common rest.

    None if the UUIDs differ elsewhere, or there are none.
    """
    if _varying_bytes(uuids) == UUID_BYTES:
        return None
    digits = _first_digits(uuids).view(np.uint8).reshape(len(uuids), 2 * _TIME_LOW_BYTES)
    return digits, format_uuid(uuids[0].tobytes())[2 * _TIME_LOW_BYTES :].encode()


def _varying_bytes(uuids: Bytes) -> int:
    """Return 4 if only the first 4 bytes (the low part of the time) differ, else all."""
    if not len(uuids):
        return UUID_BYTES
    words, halves = uuids.view(np.uint32), uuids.view(np.uint64)
    if (words[:, 1] != words[0, 1]).any() or (halves[:, 1] != halves[0, 1]).any():
        return UUID_BYTES
    return _TIME_LOW_BYTES


def _write_first_digits(texts: Bytes, uuids: Bytes, *, place: int) -> None:
    """Write the 8 digits of the first 4 bytes of UUIDs into texts from `place` on."""
    count, width = texts.shape
    np.ndarray((count,), np.uint64, texts, place, (width,))[:] = _first_digits(uuids)


def _first_digits(uuids: Bytes) -> NDArray[np.uint64]:
    """Return the 8 digits of the first 4 bytes of each UUID, as one number; shape (N,)."""
    numbers = np.ascontiguousarray(uuids.view(np.uint32)[:, 0]).view(">u2")
    digits: NDArray[np.uint64] = _HEX_QUADS[numbers].view(np.uint64)
    return digits


def _write_digits(texts: Bytes, uuids: Bytes, *, place: int) -> None:
    """Write the digits of UUIDs, shape (N, 16), into texts from `place` on."""
    digits = _HEX_PAIRS[uuids].view(np.uint8)
    for first, count, group_place in _GROUPS:
        begin = place + group_place
        texts[:, begin : begin + count] = digits[:, first : first + count]
