"""Signals that make a member leave: the first gracefully, the second at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

log = structlog.get_logger()

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What asks a process to leave. Spark adds SIGHUP."""


class Stoppable(Protocol):
    """Target of the signals."""

    def stop(self) -> None:
        """Leave gracefully. Idempotent."""
        ...

    def force_stop(self) -> None:
        """Leave at once. Idempotent."""
        ...


@contextmanager
def stop_on_signals(target: Stoppable, signals: Collection[signal.Signals]) -> Iterator[None]:
    """Stop `target` gracefully on the first of `signals`, and by force on any after it.

    Requires:
        Called in the main thread, unless `signals` is empty.
    """
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def handle(number: signal.Signals) -> None:
        received.append(number)
        log.info("member.signalled", signal=number.name, count=len(received))
        if len(received) == 1:
            target.stop()
        else:
            target.force_stop()

    for number in signals:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
