"""Ctrl-C in the driver's Python: it cancels the jobs of the interrupted cell or program, and spares members.

PySpark answers SIGINT by cancelling *every* job of its context, whatever its group, tag or pool, and members are jobs.
While a cluster runs, this handler takes the place of PySpark's; other handlers (a notebook's, an application's) stay.

Source: pyspark/core/context.py, `signal_handler`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

from pyspark import SparkContext

from broadsheet.spark_bridge.jvm import jvm_context_of

_PYSPARK_MODULE: Final = "pyspark.core.context"
_spared: Final[set[str]] = set()
"""Job groups of the members of this driver's clusters."""
_Handler = Callable[[int, FrameType | None], Any] | int | None  # `Any`: as typeshed has it
_replaced: _Handler = None
"""PySpark's handler, while ours is installed."""


def spare(context: SparkContext, group: str) -> None:
    """Spare a job group from interrupts, until `release`.

    Only the main thread may set handlers; a cluster that another thread starts is not spared, and its jobs are
    submitted again (`broadsheet.spark_bridge.cluster.elasticity`).
    """
    global _replaced
    _spared.add(group)
    if threading.current_thread() is not threading.main_thread():
        return
    present = signal.getsignal(signal.SIGINT)
    if getattr(present, "__module__", None) == _PYSPARK_MODULE:
        _replaced = present
        signal.signal(signal.SIGINT, lambda *_: _interrupt(context))


def release(group: str) -> None:
    """Spare a group no longer. Idempotent."""
    global _replaced
    _spared.discard(group)
    if _spared or _replaced is None:
        return
    present = signal.getsignal(signal.SIGINT)
    ours = getattr(present, "__module__", None) == __name__
    if ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _replaced)
        _replaced = None


def spared_jobs(context: SparkContext) -> frozenset[int]:
    """Return the jobs of the members of this driver's clusters."""
    tracker = context.statusTracker()
    return frozenset(job for group in tuple(_spared) for job in tracker.getJobIdsForGroup(group))


def _interrupt(context: SparkContext) -> NoReturn:
    try:
        spared = spared_jobs(context)
        for job in context.statusTracker().getActiveJobsIds():
            if job not in spared:
                jvm_context_of(context).cancelJob(job)
    finally:
        raise KeyboardInterrupt
