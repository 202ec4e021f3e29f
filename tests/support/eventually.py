"""Waiting in tests: poll a condition until it holds, with a deadline and a useful failure."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar, cast, overload

T = TypeVar("T")

DEADLINE_SECONDS = 120.0
"""A wait ends when its condition holds; this is for what never will, on a machine that has other things to do."""

LINGER_SECONDS = float(os.environ.get("BROADSHEET_TEST_LINGER_SECONDS", "0"))
"""How long at most a test looks away after what it waited for: `make test-flaky` asks for it. A test that then fails
holds something to be lasting that it only saw in passing.
"""


@overload
async def eventually(
    condition: Callable[[], Coroutine[object, object, T]],
    *,
    timeout_seconds: float = ...,
    interval_seconds: float = ...,
    message: str = ...,
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T],
    *,
    timeout_seconds: float = ...,
    interval_seconds: float = ...,
    message: str = ...,
) -> T: ...


async def eventually(
    condition: Callable[[], T | Coroutine[object, object, T]],
    *,
    timeout_seconds: float = DEADLINE_SECONDS,
    interval_seconds: float = 0.01,
    message: str = "",
) -> T:
    """Call `condition` until its result is true, and return that result.

    Args:
        condition: A plain or async function without arguments. An `AssertionError` counts as "not yet", so a
            condition may be written with asserts and then says itself what is missing.
        timeout_seconds: When to give up.
        interval_seconds: Pause between two calls.
        message: What was waited for, for the failure.

    Raises:
        AssertionError: the deadline passed; it shows the last result or assertion.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        unmet: AssertionError | None = None
        result: object = None
        try:
            returned = condition()
            result = await returned if inspect.isawaitable(returned) else returned
            if result:
                if LINGER_SECONDS:
                    await asyncio.sleep(random.uniform(0, LINGER_SECONDS))
                return cast("T", result)  # awaited above, if it was awaitable
        except AssertionError as error:
            unmet = error
        if time.monotonic() >= deadline:
            what = message or inspect.getsource(condition).strip()
            last = f"last failure: {unmet}" if unmet is not None else f"last result: {result!r}"
            raise AssertionError(f"not within {timeout_seconds} s: {what} ({last})") from unmet
        await asyncio.sleep(interval_seconds)


def eventually_sync(
    condition: Callable[[], T],
    *,
    timeout_seconds: float = DEADLINE_SECONDS,
    interval_seconds: float = 0.02,
    message: str = "",
) -> T:
    """Do the same without an event loop."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        unmet: AssertionError | None = None
        result: T | None = None
        try:
            result = condition()
            if result:
                if LINGER_SECONDS:
                    time.sleep(random.uniform(0, LINGER_SECONDS))
                return result
        except AssertionError as error:
            unmet = error
        if time.monotonic() >= deadline:
            what = message or inspect.getsource(condition).strip()
            last = f"last failure: {unmet}" if unmet is not None else f"last result: {result!r}"
            raise AssertionError(f"not within {timeout_seconds} s: {what} ({last})") from unmet
        time.sleep(interval_seconds)
