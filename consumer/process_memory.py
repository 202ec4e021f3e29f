"""Keeps the memory of a process that serves from growing, and gives it back to the kernel when the process is idle.

Calls that end in an error or are cancelled leave a few objects that refer to each other, and gRPC's buffers with them:
some 20 KiB a call. `serve_only` has the collector run by the number of objects, so rarely that such buffers would
grow by a MiB a minute; here it runs by the clock.

The interpreter and glibc keep what a busy time took, for the next one. A process whose busy time is over gives it back
a few times: at once, and later, because some of what it holds is let go only after minutes (pending messages of
producers that fell silent, idle connections).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from typing import Final

from consumer.interpreter import return_freed_memory

LOOK_SECONDS: Final = 15.0
LOOKS_PER_FULL_COLLECTION: Final = 20
YOUNG: Final = 1
OLD: Final = 2
"""Generations of Python's collector."""
BUSY_SHARE: Final = 0.04
"""Of one processor, from which on a process counts as busy. Beats, keep-alives and probes take less than half of it."""
TRIM_LOOKS: Final = (1, 3, 6, 10, 24)
"""After how many idle looks, one after the other, memory is given back: after 15 s, and last after 6 minutes."""


class IdleTrims:
    """Decides when memory is given back, from the processor time that the process takes. Pure."""

    def __init__(self) -> None:
        self._was_busy = False
        self._idle_looks = 0

    def look(self, cpu_seconds: float, elapsed_seconds: float) -> bool:
        """Return whether to give memory back now.

        Args:
            cpu_seconds: Processor time that the process took since the last look.
            elapsed_seconds: Time since then.
        """
        if cpu_seconds > BUSY_SHARE * elapsed_seconds:
            self._was_busy, self._idle_looks = True, 0
            return False
        if not self._was_busy:
            return False
        self._idle_looks += 1
        self._was_busy = self._idle_looks < TRIM_LOOKS[-1]
        return self._idle_looks in TRIM_LOOKS


async def tend_memory(*, look_seconds: float = LOOK_SECONDS) -> None:
    """Collect cycles by the clock, and give memory back once this process has become idle. Ends when it is cancelled.

    Args:
        look_seconds: Time between two looks.
    """
    trims = IdleTrims()
    cpu_seconds, now_seconds = time.process_time(), time.monotonic()
    for look in itertools.count(1):
        await asyncio.sleep(look_seconds)
        cpu_before, before = cpu_seconds, now_seconds
        cpu_seconds, now_seconds = time.process_time(), time.monotonic()
        if trims.look(cpu_seconds - cpu_before, now_seconds - before):
            await asyncio.to_thread(return_freed_memory)
        else:
            # Young objects only take a millisecond or two; all of them ten times as long.
            gc.collect(OLD if look % LOOKS_PER_FULL_COLLECTION == 0 else YOUNG)
