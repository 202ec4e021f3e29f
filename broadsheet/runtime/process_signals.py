"""Signals of this process, handled on its event loop, and not inherited by the children that it forks.

asyncio tells its loop of a signal through a pipe, the *wake-up descriptor*. A forked child (`multiprocessing` with
`fork`, a process pool) inherits that pipe and the handlers: a signal to the child is then handled by the parent, and
ending a worker of a pool ends the member. So a child gets the default handlers and no wake-up descriptor, and no
signal is delivered to it before that.

Source: CPython 3.12 asyncio/events.py `on_fork`, which does so for a fork on the loop's own thread alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_handled: Final[set[signal.Signals]] = set()
"""Signals whose handlers are ours now."""
_forking: Final = threading.local()
"""The signal mask of a thread that forks, from before the fork."""


@contextmanager
def handled_on_loop(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Iterator[None]:
    """Call a handler on the running loop for each signal, during the block.

    Requires:
        Called in the main thread, unless there are no handlers.
    """
    loop = asyncio.get_running_loop()
    for number, handle in handlers.items():
        loop.add_signal_handler(number, handle)
    _handled.update(handlers)
    try:
        yield
    finally:
        _handled.difference_update(handlers)
        for number in handlers:
            loop.remove_signal_handler(number)


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _after_fork_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _after_fork_in_child() -> None:
    # The thread that forked is the child's main thread, so this is allowed on any.
    signal.set_wakeup_fd(-1)
    for number in _handled:
        default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
        signal.signal(number, default)
    _handled.clear()
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
