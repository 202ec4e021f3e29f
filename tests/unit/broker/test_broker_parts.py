"""Small parts of the broker: hand-coded messages, flow control, settings, wake-ups."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from broadsheet.broker.config import Durability
from broadsheet.broker.flow_control import Throttle
from broadsheet.journals.wire import append_content, encode_read_chunk
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.event_loop import Signal
from broadsheet.wire.journal_pb2 import AppendRequest, ReadResponse


class _Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic_seconds(self) -> float:
        """Return the test's time, seconds."""
        return self.now

    def wall_seconds(self) -> float:
        """Return the test's time, seconds."""
        return self.now


@given(offset=st.integers(0, 2**63 - 1), content=st.binary(min_size=1, max_size=300))
def test_read_chunk_is_what_protobuf_would_parse(offset: int, content: bytes) -> None:
    """The hand-coded chunk and the generated parser agree on every offset and length."""
    parsed = ReadResponse.FromString(encode_read_chunk(offset, content))

    assert parsed == ReadResponse(offset=offset, content=content)


@given(content=st.binary(max_size=300))
def test_append_content_agrees_with_protobuf(content: bytes) -> None:
    """Content alone is taken by the fast path; anything beside it is noticed."""
    alone = AppendRequest(content=content).SerializeToString()
    with_more = AppendRequest(content=content, offset=3).SerializeToString()

    assert bytes(append_content(alone) or b"") == content
    assert append_content(with_more) is None


def test_append_content_of_garbage_is_a_value_error() -> None:
    """A malformed message must not pass for content."""
    for message in (b"\x22", b"\x22\xff", b"\x22\x05abc", b"\x22" + b"\xff" * 12):
        with pytest.raises(ValueError, match="malformed"):
            append_content(message)


def test_throttle_starts_with_a_second_and_banks_ten() -> None:
    """One second's worth is free at the start; idle time is saved up to ten seconds' worth; debt is paid in order."""
    clock = _Clock()
    throttle = Throttle(clock)

    def pay(length: int) -> float:
        return throttle.delay_seconds(length, bytes_per_second=1000)

    assert pay(1000) == 0.0
    assert pay(500) == 0.5
    assert pay(500) == 1.0
    clock.now += 1000.0
    assert pay(10_000) == 0.0
    assert pay(1) == pytest.approx(0.001)
    assert throttle.delay_seconds(10**9, bytes_per_second=0) == 0.0


def test_throttle_ignores_time_that_steps_back() -> None:
    """A clock that steps back earns nothing and costs nothing."""
    clock = _Clock()
    throttle = Throttle(clock)
    throttle.delay_seconds(1000, bytes_per_second=1000)
    clock.now -= 50.0

    assert throttle.delay_seconds(1000, bytes_per_second=1000) == 1.0


@pytest.mark.parametrize("text", ["always", "off", "interval=250"])
def test_durability_text_round_trips(text: str) -> None:
    """What the command line takes is what the log prints."""
    assert str(Durability.parse(text)) == text


@pytest.mark.parametrize("text", ["", "sometimes", "interval", "interval=0", "interval=x"])
def test_durability_bad_text_names_the_choices(text: str) -> None:
    """A misspelt policy must never become a weaker one."""
    with pytest.raises(ValidationError, match="always, interval=<milliseconds> or off"):
        Durability.parse(text)


async def test_signal_wakes_all_present_waiters_once() -> None:
    """Every waiter of the moment wakes; a cancelled one takes nobody along; a later one waits for the next."""
    signal = Signal()
    waiters = [asyncio.gather(signal.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await asyncio.sleep(0)

    signal.notify()
    await asyncio.gather(*waiters[1:])
    late = asyncio.gather(signal.wait())
    await asyncio.sleep(0)

    assert not late.done()
    signal.notify()
    await late


async def test_signal_wakes_waiters_in_the_order_in_which_they_came() -> None:
    """So that a simulated run is the same in every process; where futures lie in memory says nothing."""
    signal = Signal()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await signal.wait()
        woken.append(number)

    waiting = [asyncio.gather(wait(number)) for number in range(50)]
    await asyncio.sleep(0)

    signal.notify()
    await asyncio.gather(*waiting)

    assert woken == list(range(50))
