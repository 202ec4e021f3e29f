"""Lines to a descriptor that never raise into the work, never hold it up, and are counted when lost.

    any thread ── write ──► bounded queue ──► one daemon thread ── write(2) ──► descriptor
                               │ full                              │ no reader, no space
                               └──────────── lost, counted ────────┘ the next line that is written tells how many

A descriptor may fail (its reader ended, the disk is full) or block for ever (the pipe is not read, the file server
hangs). Neither is a reason for a shard to stop. So the work only appends to a queue; at the end of the process the
queue is given `EXIT_SECONDS_MAX`.

A forked child has no such thread. It writes by itself, what the descriptor takes at once, and counts the rest.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PENDING_BYTES_MAX: Final = 4 << 20
"""Bytes that wait for a descriptor, about ten thousand lines; more are lost."""
BATCH_BYTES: Final = 64 << 10
"""Bytes of one write, if as many wait."""
EXIT_SECONDS_MAX: Final = 2.0
"""How long a process that ends waits for its last lines."""
_STANDARD: Final = (0, 1, 2)
_STREAMS: Final = {"stdout": 1, "stderr": 2}


class Loss(Enum):
    """The reason why a line was not written; the values are labels of a metric."""

    NOT_WRITTEN = "not_written"
    """The descriptor refused it: it has no reader, or no space."""
    NOT_READ = "not_read"
    """Too many lines wait for the descriptor already."""
    TOO_OFTEN = "too_often"
    """Its event was logged too often lately."""


class Losses:
    """Counts of lost lines of this process, by reason."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(Loss, 0)

    def add(self, why: Loss, lines: int = 1) -> None:
        """Count lost lines. Two threads that do this at once may lose a count, which no caller depends on."""
        self._counts[why] += lines

    def count(self, why: Loss) -> int:
        """Return the lines lost for one reason since the process began."""
        return self._counts[why]


LOSSES: Final = Losses()
"""Of this process: descriptors are the process's, too."""


def plain_notice(lines: int) -> str:
    """Return the line that tells of lost ones, where no format is configured."""
    return f"log.lines_lost lines={lines}"


class LineWriter:
    """Writes to one descriptor. Methods may be called on any thread, also in destructors and signal handlers."""

    def __init__(self, descriptor: int, losses: Losses = LOSSES) -> None:
        """Prepare a writer; its thread starts with the first line.

        Args:
            descriptor: Stays the caller's.
            losses: Where to count.
        """
        self.notice: Callable[[int], str] = plain_notice
        """Makes the line that tells how many were lost, once lines are written again."""
        self._descriptor = descriptor
        self._losses = losses
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        # Reentrant, because a destructor may log in the middle of `write`, on the same thread.
        self._lock = threading.RLock()
        self._pending_bytes = 0
        self._thread: threading.Thread | None = None
        self._alone = False
        """Whether there is no thread, and never will be: after a fork, and at the very end of the process."""
        self._untold = 0
        self._is_torn = False
        """Whether a failed write ended within a line. Where a program prints parts of a line, the next one follows."""

    def write(self, data: bytes) -> None:
        """Write whole lines, soon."""
        if self._alone or not self._is_started():
            self._write([data], wait=False)
            return
        with self._lock:
            # A single line is never too long for an empty queue.
            if self._pending_bytes and self._pending_bytes + len(data) > PENDING_BYTES_MAX:
                self._lose(Loss.NOT_READ, [data])
                return
            self._pending_bytes += len(data)
        self._queue.put(data)

    def flush(self, seconds_max: float = EXIT_SECONDS_MAX) -> bool:
        """Wait until everything until now is written or lost; False if that takes longer than `seconds_max`."""
        if self._alone or self._thread is None:
            return True
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds_max)

    def continue_alone(self) -> None:
        """Write without a thread from now on, as in a forked child. Lines that still wait are left to the parent."""
        self._lock = threading.RLock()  # Another thread of the parent's may have held it.
        self._alone = True
        self._untold = 0

    def _is_started(self) -> bool:
        with self._lock:
            if self._thread is not None:
                return True
            thread = threading.Thread(
                target=self._run, name=f"log to {self._descriptor}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                return False  # no more threads, or Python ends: the next line tries again
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            batch: list[bytes] = []
            waiting: list[threading.Event] = []
            self._take(self._queue.get(), batch, waiting)
            size = sum(map(len, batch))
            while size < BATCH_BYTES and not waiting:
                try:
                    self._take(self._queue.get_nowait(), batch, waiting)
                except Empty:
                    break
                size = sum(map(len, batch))
            self._write(batch, wait=True)
            with self._lock:
                self._pending_bytes = max(0, self._pending_bytes - size)
            for each in waiting:
                each.set()

    @staticmethod
    def _take(
        item: bytes | threading.Event, batch: list[bytes], waiting: list[threading.Event]
    ) -> None:
        if isinstance(item, bytes):
            batch.append(item)
        else:
            waiting.append(item)

    def _write(self, batch: list[bytes], *, wait: bool) -> None:
        """Write lines, and count those that are not written. Never raises."""
        if not batch:
            return
        told = self._untold
        head = b"\n" if self._is_torn else b""
        if told:
            head += self.notice(told).encode(errors="backslashreplace") + b"\n"
        data = head + b"".join(batch)
        written = 0
        try:
            while written < len(data):
                written += self._write_some(data[written:], wait=wait)
        except OSError:
            # BrokenPipeError, no space, a closed descriptor, or one that takes nothing at once: later lines try again.
            self._lose(Loss.NOT_WRITTEN, _unwritten(batch, written - len(head)))
            if written:
                self._is_torn = not data[:written].endswith(b"\n")
        else:
            self._is_torn = False
        if written >= len(head):
            self._untold -= told

    def _write_some(self, data: bytes, *, wait: bool) -> int:
        if not wait:
            # A pipe that is writable takes this much without waiting (pipe(7)).
            data = data[: select.PIPE_BUF]
            self._require_writable(milliseconds=0)
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            # Another process with the same terminal or pipe made it non-blocking.
            if not wait:
                raise
            self._require_writable(milliseconds=None)
            return 0

    def _require_writable(self, milliseconds: int | None) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if not poll.poll(milliseconds):
            raise BlockingIOError

    def _lose(self, why: Loss, lines: Iterable[bytes]) -> None:
        count = sum(max(1, line.count(b"\n")) for line in lines)
        self._untold += count
        self._losses.add(why, count)


def _unwritten(batch: list[bytes], written: int) -> list[bytes]:
    """Return the lines of a batch that are not within its first `written` bytes."""
    end = 0
    found = []
    for line in batch:
        end += len(line)
        if end > written:
            found.append(line)
    return found


_writers: Final[dict[int, LineWriter]] = {}


def line_writer(descriptor: int) -> LineWriter:
    """Return this process's writer of a descriptor."""
    return _writers.setdefault(descriptor, LineWriter(descriptor))


def flush_lines(seconds_max: float = EXIT_SECONDS_MAX) -> None:
    """Wait, for a bounded time, until all lines until now are written: before a process ends without `atexit`."""
    deadline = time.monotonic() + seconds_max
    for writer in _writers.values():
        writer.flush(max(0.0, deadline - time.monotonic()))


def _continue_alone() -> None:
    for writer in _writers.values():
        writer.continue_alone()


def _end() -> None:
    for name in _STREAMS:
        stream = getattr(sys, name)
        if isinstance(stream, _GuardedStream):
            stream.flush()
    flush_lines(EXIT_SECONDS_MAX)
    # Python stops daemon threads after this, and then prints what destructors complain about.
    for writer in _writers.values():
        writer.continue_alone()


os.register_at_fork(after_in_child=_continue_alone)
atexit.register(_end)


# Python's own streams.


class _Descriptor(io.RawIOBase):
    """A standard descriptor as a raw stream: a write to it never raises and never waits."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._writer = line_writer(descriptor)
        self.name = name

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        content = bytes(data)
        self._writer.write(content)
        return len(content)


class _GuardedStream(io.TextIOWrapper):
    """`sys.stdout` or `sys.stderr` over `_Descriptor`."""


def open_standard_descriptors() -> None:
    """Open `/dev/null` for each of the descriptors 0, 1 and 2 that was closed when the process began.

    Call it first: otherwise a file or a socket that the process opens gets such a number, and is written into, or
    closed, by what means standard error.
    """
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is given, so this is `descriptor` itself. Children inherit the standard ones.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has no such stream where the descriptor was closed.
    for name, descriptor in (("stdin", 0), *_STREAMS.items()):
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


def guard_standard_streams() -> None:
    """Make `sys.stdout` and `sys.stderr` write through a `LineWriter`, if they are the process's own. Idempotent.

    Whatever prints (logs, tracebacks, warnings, click's errors, an application) then never fails and never waits. It
    is for servers: a command whose result is on standard output must notice that its reader ended.
    """
    for name, descriptor in _STREAMS.items():
        stream = getattr(sys, name)
        if descriptor_of(stream) != descriptor or isinstance(stream, _GuardedStream):
            continue
        try:
            stream.flush()
        except OSError:
            LOSSES.add(Loss.NOT_WRITTEN)
        # Without a buffer, as for `python -u`: a buffer has a lock, which another thread may hold when a child is
        # forked, and the child would wait for it for ever.
        guarded = _GuardedStream(
            _Descriptor(descriptor, f"<{name}>"),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
            write_through=True,
        )
        setattr(sys, name, guarded)


def descriptor_of(stream: object) -> int | None:
    """Return the descriptor of a text stream; None if it has none, as where a test captures it."""
    try:
        # `Any`: a replacement of sys.stderr may be any object.
        number: object = stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None
    return number if isinstance(number, int) else None
