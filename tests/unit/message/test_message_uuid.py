"""UUIDs and clocks: the wire layout that readers in any language agree on."""

from __future__ import annotations

import uuid

import pytest

from broadsheet.journals.message.uuid import (
    CLOCK_UNITS_PER_MESSAGE,
    NIL_UUID,
    MessageClock,
    build_uuid,
    clock_at,
    format_uuid,
    new_producer_id,
    parse_uuid,
    unix_seconds_of,
)

FULL_RANGE_NANOSECONDS = 1_567_304_621_981_273_734
"""A wall time whose clock uses the full range of bits."""
FULL_RANGE_FLAGS = 0b1010101010


def full_range_clock() -> int:
    """Return a clock that was moved on and ticked twice."""
    clock = MessageClock()
    clock.update_nanoseconds(FULL_RANGE_NANOSECONDS)
    clock.tick()
    return clock.tick()


def test_uuid_full_range_round_trips_and_agrees_with_stock_library() -> None:
    """Plan: pack a clock that sets high and low bits; read it with Python's `uuid`. Why: other languages will too."""
    producer, clock = new_producer_id(), full_range_clock()

    packed = build_uuid(producer, clock, FULL_RANGE_FLAGS)

    assert parse_uuid(packed) == (producer, clock, FULL_RANGE_FLAGS)
    stock = uuid.UUID(bytes=packed)
    assert stock.version == 1
    assert stock.variant == uuid.RFC_4122
    assert stock.node == producer
    assert stock.time == clock >> 4
    assert stock.clock_seq == FULL_RANGE_FLAGS  # the clock's own sequence bits are zero
    assert str(stock) == format_uuid(packed)
    # 981273734 ns cut to 100 ns, and two microseconds from two ticks.
    assert (clock >> 4) - 122_192_928_000_000_000 == 15_673_046_219_812_757


def test_uuid_sequence_bits_of_clock_round_trip() -> None:
    """Plan: a clock whose low four bits are set. Why: they live next to the flags in another field."""
    packed = build_uuid(0xFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x3FF)

    assert parse_uuid(packed) == (0xFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x3FF)


def test_uuid_oversized_flags_are_a_programming_error() -> None:
    """Plan: an eleventh bit. Why: it would corrupt the clock's sequence bits."""
    with pytest.raises(AssertionError, match="0x400"):
        build_uuid(1, 160, 0x400)


@pytest.mark.parametrize(
    "packed",
    [NIL_UUID, uuid.UUID("7d444840-9dc0-41d1-b245-5ffdce74fad2").bytes, b"\xff" * 16],
    ids=["nil", "version 4", "none"],
)
def test_parse_uuid_nil_and_foreign_versions_are_zero(packed: bytes) -> None:
    """Plan: nil, one of version 4, and none at all. Why: random bits taken for a clock could lose a message."""
    assert parse_uuid(packed) == (0, 0, 0)


def test_new_producer_id_many_draws_are_unique_and_multicast() -> None:
    """Plan: 1000 draws. Why: a collision would merge two producers' sequences."""
    drawn = {new_producer_id() for _ in range(1000)}

    assert len(drawn) == 1000
    assert all(producer >> 40 & 1 and producer < 1 << 48 for producer in drawn)


def test_new_producer_id_uses_every_random_byte() -> None:
    """Plan: known bytes. Why: entropy must not be dropped, whatever the leading byte."""
    assert new_producer_id(lambda count: bytes(count)) == 0x010000000000
    assert new_producer_id(lambda _: b"\x02\x03\x04\x05\x06\x07") == 0x030304050607


def test_clock_ticks_are_microseconds() -> None:
    """Plan: tick a fresh clock. Why: a million messages a second must not repeat a clock."""
    clock = MessageClock()

    assert (clock.tick(), clock.tick()) == (CLOCK_UNITS_PER_MESSAGE, 2 * CLOCK_UNITS_PER_MESSAGE)


def test_clock_update_is_precise_to_100_nanoseconds_and_never_goes_back() -> None:
    """Plan: forward, back, forward. Why: a stepping wall clock must not make duplicates of new messages."""
    clock = MessageClock()
    clock.update_nanoseconds(12_000_000_300)
    assert clock.value == clock_at(12_000_000_399) < clock_at(12_000_000_400)
    assert unix_seconds_of(clock.value) == pytest.approx(12.0000003)

    clock.tick()
    clock.update_nanoseconds(11_000_000_100)
    assert clock.value == clock_at(12_000_001_300)

    clock.update_nanoseconds(12_000_005_000)
    assert clock.value == clock_at(12_000_005_000)


def test_clock_update_takes_seconds() -> None:
    """Plan: a wall time as the Clock port gives it. Why: that is what the runtime has."""
    clock = MessageClock()

    clock.update(1_700_000_000.5)

    assert unix_seconds_of(clock.value) == 1_700_000_000.5
