"""Pages for debugging: versions, resources and configuration of a process, and the stacks of its tasks and threads."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Final

from broadsheet.runtime.installed_version import installed_version

TASKS_MAX: Final = 2_000
"""Tasks that are looked at for `/debug/tasks`, because the event loop waits meanwhile: some 20 ms."""
FRAMES_MAX: Final = 32
"""Frames of one stack."""
_started_at: Final = monotonic()


def process_variables() -> dict[str, object]:
    """Return versions and resources of this process. Its command line is left out, because it may have keys."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "pid": os.getpid(),
        "uptime_seconds": round(monotonic() - _started_at, 3),
        "python": platform.python_version(),
        "versions": {
            name: installed_version(name) for name in ("broadsheet", "grpcio", "protobuf")
        },
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
        "resident_bytes": _resident_bytes(),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "gc": {"counts": gc.get_count(), "frozen": gc.get_freeze_count()},
    }


def _resident_bytes() -> int:
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def shown(value: Any) -> Any:
    """Return a value for JSON; of dataclasses, fields that their `repr` hides, such as keys, are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: shown(getattr(value, each.name)) for each in fields(value) if each.repr}
    if isinstance(value, Mapping):
        return {str(key): shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [shown(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def task_report(*, are_named: bool = True) -> str:
    """Return the stacks of tasks and threads: files, lines and functions, without values.

    Args:
        are_named: Whether names of tasks and threads are shown.
    """
    tasks = asyncio.all_tasks()
    groups: dict[tuple[str, ...], list[str]] = {}
    for task in islice(tasks, TASKS_MAX):
        groups.setdefault(_stack_of(task), []).append(task.get_name())
    lines = [f"{len(tasks)} tasks, of which {min(len(tasks), TASKS_MAX)} are shown", ""]
    for stack, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        few = ", ".join(sorted(names)[:3]) if are_named else "a task"
        more = ", …" if are_named and len(names) > 3 else ""
        lines += [f"{len(names)} x {few}{more}", *stack, ""]
    by_id = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented; it has no public name
        lines.append(f"thread {by_id.get(ident, ident) if are_named else ident}")
        summary = traceback.extract_stack(frame, limit=FRAMES_MAX)
        lines += [f"    {each.filename}:{each.lineno} {each.name}" for each in summary]
        lines.append("")
    return "\n".join(lines)


def _stack_of(task: asyncio.Task[Any]) -> tuple[str, ...]:
    """Return the frames of a task, the outermost first; `Task.get_stack` shows only that one of a waiting task."""
    return tuple(islice(_frames(task.get_coro()), FRAMES_MAX))


def _frames(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        frame = _first(awaited, ("cr_frame", "gi_frame", "ag_frame"))
        if frame is None:
            yield f"    awaits {type(awaited).__name__}"
            return
        yield f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        awaited = _first(awaited, ("cr_await", "gi_yieldfrom", "ag_await"))


def _first(value: Any, names: Iterable[str]) -> Any:
    return next(
        (found for name in names if (found := getattr(value, name, None)) is not None), None
    )
