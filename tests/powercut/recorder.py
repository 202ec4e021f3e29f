"""Runs a process and takes down what it does to the files below a directory.

Calls are taken down in the order in which they are made. The next one waits until a change of names has happened,
because a call names its file by a descriptor, whose path is looked up as of then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Self

import msgspec

from tests.powercut import syscalls
from tests.powercut.child import REQUEST_BYTES_MAX, Ended, Request, Started
from tests.powercut.syscalls import Call
from tests.powercut.trace import (
    Create,
    Event,
    FailedSync,
    Link,
    Remove,
    Rename,
    Said,
    Sync,
    Truncate,
    Write,
)

LIFE_SECONDS_MAX: Final = 120.0
ERROR_BYTES_MAX: Final = 4_000
_EFFECT_SECONDS_MAX: Final = 1.0
_AT_WORKING_DIRECTORY: Final = 0xFFFFFF9C
_STDOUT: Final = 1
_RWF_DSYNC: Final = 2
_PATH_BYTES_MAX: Final = 4096
_SAME_OFFSET: Final = (1 << 64) - 1


class LifeFailedError(Exception):
    """A program ended by itself, with an error that it has printed."""


class Fate(Enum):
    """What becomes of a process before a change."""

    GO_ON = "go on"
    FAIL = "fail"
    """The call, a sync, fails: the disk does not take what was written."""
    KILL = "kill"


Judge = Callable[[Event], Fate]
"""Asked before each change of a process."""


class Nursery:
    """Starts the processes that are recorded; its own process has loaded the programs."""

    def __init__(self, *modules: str) -> None:
        """Start it, with these programs loaded."""
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(LIFE_SECONDS_MAX)
        command = [sys.executable, "-m", "tests.powercut.child", str(theirs.fileno()), *modules]
        self._errors = os.memfd_create("errors")
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._process.wait(LIFE_SECONDS_MAX)
        os.close(self._errors)

    def start(self, module: str, arguments: Sequence[str]) -> tuple[int, int]:
        """Start a program; return its process, and the descriptor on which its calls are reported."""
        self._ours.send(msgspec.json.encode(Request(module, list(arguments))))
        content, descriptors, _, _ = socket.recv_fds(self._ours, REQUEST_BYTES_MAX, 1)
        assert descriptors, f"{module} could not be recorded ({content!r}): {self.errors()}"
        return msgspec.json.decode(content, type=Started).pid, descriptors[0]

    def errors(self) -> str:
        """Return the end of what programs wrote to their standard error."""
        size = os.fstat(self._errors).st_size
        begin = max(0, size - ERROR_BYTES_MAX)
        return os.pread(self._errors, ERROR_BYTES_MAX, begin).decode(errors="replace")

    def ended(self) -> int:
        """Wait for the end of the program that was started, and return its status."""
        return msgspec.json.decode(self._ours.recv(REQUEST_BYTES_MAX), type=Ended).status


class Recorder:
    """Takes down the calls of one process and its threads."""

    def __init__(self, root: Path) -> None:
        """Begin with nothing.

        Args:
            root: The directory to watch; resolved, so that paths compare.
        """
        self._root = str(root)
        self._partial_line = b""
        self.events: list[Event] = []
        self._has_failed = False
        self._in_flight: dict[int, Event] = {}
        """The last change by each thread, which may not have happened yet."""

    def run(
        self,
        nursery: Nursery,
        module: str,
        arguments: Sequence[str],
        *,
        fate: Judge = lambda _: Fate.GO_ON,
    ) -> bool:
        """Run a program to its end; return whether it was killed.

        Args:
            nursery: Starts it.
            module: Has a function `main(arguments)`.
            arguments: Of the program.
            fate: Asked before each change.

        Raises:
            LifeFailedError: the program failed.
            AssertionError: it took too long.
        """
        self._partial_line = b""
        self._in_flight.clear()
        self._has_failed = False
        pid, listener = nursery.start(module, arguments)
        try:
            killed = self._listen(listener, pid, fate)
        finally:
            os.close(listener)
        status = nursery.ended()
        # Where a sync failed, any error may end the program.
        if not killed and status and not self._has_failed:
            raise LifeFailedError(
                f"{module} {' '.join(arguments)} ended with {status}: {nursery.errors()}"
            )
        return killed

    def _listen(self, listener: int, pid: int, fate: Judge) -> bool:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        deadline = time.monotonic() + LIFE_SECONDS_MAX
        while time.monotonic() < deadline:
            found = poll.poll(1000)
            if found and found[0][1] & select.POLLIN:
                call = syscalls.receive(listener)
                if call is not None and not self._take_down(listener, call, fate):
                    os.kill(pid, signal.SIGKILL)
                    return True
            elif found:  # Hung up: no thread is left.
                return False
        os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"the process still runs after {LIFE_SECONDS_MAX} s")

    def _take_down(self, listener: int, call: Call, fate: Judge) -> bool:
        """Take down a call and let it go; return False, and let it hang, where the process is to be killed."""
        events = list(self._events_of(call))
        fates = [fate(event) for event in events]
        if Fate.KILL in fates:
            return False
        error = 0
        if Fate.FAIL in fates:
            (event,) = events
            assert isinstance(event, Sync), f"{event} cannot be made to fail"
            events, error = [FailedSync(event.path)], errno.EIO
            self._has_failed = True
        self.events += events
        if not syscalls.answer(listener, call, error=error):
            del self.events[len(self.events) - len(events) :]
            return True
        for event in events:
            self._in_flight[call.thread] = event
            self._await_effect(event)
        return True

    def settle(
        self, files: dict[str, bytes], replayed: Callable[[Sequence[Event]], dict[str, bytes]]
    ) -> None:
        """After a kill, drop changes that threads were about to make and did not.

        Args:
            files: What is there, by path.
            replayed: Returns the files after events.

        Raises:
            AssertionError: what was taken down is not what happened.
        """
        if replayed(self.events) == files:
            return
        doubtful = [each for each in self._in_flight.values() if each in self.events[-64:]]
        for choice in range(1, 1 << len(doubtful)):
            dropped = {id(each) for bit, each in enumerate(doubtful) if choice >> bit & 1}
            kept = [each for each in self.events if id(each) not in dropped]
            with contextlib.suppress(KeyError):
                if replayed(kept) == files:
                    self.events = kept
                    return
        found = replayed(self.events)
        wrong = sorted(path for path in {*found, *files} if found.get(path) != files.get(path))
        raise AssertionError(f"what was taken down is not what the process did to {wrong}")

    def _await_effect(self, event: Event) -> None:
        """Wait until a change of names has happened."""
        if not isinstance(event, Create | Link | Rename | Remove):
            return
        path = Path(self._root, event.to if isinstance(event, Link | Rename) else event.path)
        gone = Path(self._root, event.path) if isinstance(event, Rename | Remove) else None
        deadline = time.monotonic() + _EFFECT_SECONDS_MAX
        while time.monotonic() < deadline:
            if gone is not None and not os.path.lexists(gone):
                return
            if gone is None and os.path.lexists(path):
                return

    def _events_of(self, call: Call) -> Iterator[Event]:
        reader = _READERS.get(call.name)
        assert reader is not None, call.name
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield from reader(self, call)

    # -- what each call does; a call that is going to fail does nothing

    def writes(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that writes content."""
        descriptor, arguments = call.arguments[0], call.arguments
        if descriptor == _STDOUT and call.name == "write":
            yield from self._said(self._memory(call, arguments[1], arguments[2]))
            return
        path = self._path_of(call, descriptor)
        if path is None:
            return
        if call.name in ("write", "pwrite64"):
            content = self._memory(call, arguments[1], arguments[2])
        else:
            vector = self._memory(call, arguments[1], 16 * arguments[2])
            content = b"".join(
                self._memory(call, *each) for each in struct.iter_unpack("=QQ", vector)
            )
        offset = arguments[3]
        if call.name in ("write", "writev") or offset == _SAME_OFFSET:
            offset = self._position(call, descriptor, path)
        if content:
            is_durable = call.name == "pwritev2" and bool(arguments[5] & _RWF_DSYNC)
            yield Write(path, offset, content, is_durable)

    def _said(self, content: bytes) -> Iterator[Event]:
        *lines, self._partial_line = (self._partial_line + content).split(b"\n")
        for line in lines:
            yield Said(line.decode())

    def opens(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that opens a file, and may make or empty it."""
        at, name, flags = call.arguments[:3]
        if call.name == "open":
            at, name, flags = _AT_WORKING_DIRECTORY, *call.arguments[:2]
        elif call.name == "creat":
            at, name, flags = _AT_WORKING_DIRECTORY, at, os.O_CREAT | os.O_TRUNC | os.O_WRONLY
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return
        path = self._path_at(call, at, name)
        if path is None:
            return
        exists = os.path.lexists(Path(self._root, path))
        if not exists and flags & os.O_CREAT:
            if Path(self._root, path).parent.is_dir():
                yield Create(path)
        elif exists and flags & os.O_TRUNC and not flags & os.O_EXCL:
            yield Truncate(path, 0)

    def truncates(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that sets the length of a file."""
        path = (
            self._path_at(call, _AT_WORKING_DIRECTORY, call.arguments[0])
            if call.name == "truncate"
            else self._path_of(call, call.arguments[0])
        )
        if path is not None:
            yield Truncate(path, call.arguments[1])

    def allocates(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that reserves space."""
        descriptor, mode, offset, length = call.arguments[:4]
        path = self._path_of(call, descriptor)
        # FALLOC_FL_KEEP_SIZE changes nothing that can be read.
        if path is None or mode & 1:
            return
        assert not mode, f"fallocate with mode {mode} is not modelled"
        if offset + length > Path(self._root, path).stat().st_size:
            yield Truncate(path, offset + length)

    def syncs(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that makes content durable."""
        path = self._path_of(call, call.arguments[0])
        if path is not None:
            yield Sync(path)

    def makes(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that makes a directory."""
        at, name = call.arguments[:2]
        if call.name == "mkdir":
            at, name = _AT_WORKING_DIRECTORY, at
        path = self._path_at(call, at, name)
        if path is None:
            return
        made = Path(self._root, path)
        if not os.path.lexists(made) and made.parent.is_dir():
            yield Create(path, is_directory=True)

    def removes(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that removes a name."""
        at, name, flags = call.arguments[:3]
        if call.name != "unlinkat":
            at, name, flags = _AT_WORKING_DIRECTORY, at, 0
        path = self._path_at(call, at, name)
        if path is None:
            return
        found = Path(self._root, path)
        wants_directory = call.name == "rmdir" or bool(flags & 0x200)
        is_directory = stat.S_ISDIR(found.lstat().st_mode)
        if is_directory == wants_directory and not (is_directory and any(found.iterdir())):
            yield Remove(path)

    def renames(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that renames."""
        if call.name == "rename":
            source = self._path_at(call, _AT_WORKING_DIRECTORY, call.arguments[0])
            target = self._path_at(call, _AT_WORKING_DIRECTORY, call.arguments[1])
        else:
            source = self._path_at(call, *call.arguments[:2])
            target = self._path_at(call, *call.arguments[2:4])
        if source is None and target is None:
            return
        assert source is not None, f"{target} comes from outside"
        assert target is not None, f"{source} goes outside"
        Path(self._root, source).lstat()
        if Path(self._root, target).parent.is_dir() and source != target:
            yield Rename(source, target)

    def links(self, call: Call) -> Iterator[Event]:
        """Yield the events of a call that gives a file another name."""
        if call.name == "link":
            source = self._path_at(call, _AT_WORKING_DIRECTORY, call.arguments[0])
            target = self._path_at(call, _AT_WORKING_DIRECTORY, call.arguments[1])
        else:
            source = self._path_at(call, *call.arguments[:2])
            target = self._path_at(call, *call.arguments[2:4])
        if source is None or target is None:
            return
        if not os.path.lexists(Path(self._root, target)):
            yield Link(source, target)

    # -- looking into the process, whose thread is held

    def _memory(self, call: Call, address: int, length: int) -> bytes:
        if not length:
            return b""
        with Path(f"/proc/{call.thread}/mem").open("rb", buffering=0) as memory:
            return os.pread(memory.fileno(), length, address)

    def _path_of(self, call: Call, descriptor: int) -> str | None:
        """Return the path of an open file; None if it is elsewhere, or has no name any more."""
        target = _link(call, f"fd/{descriptor & 0xFFFFFFFF}")
        if target.endswith(" (deleted)"):
            return None
        return self._below(target)

    def _path_at(self, call: Call, at: int, address: int) -> str | None:
        name = self._memory_text(call, address)
        if not name.startswith("/"):
            working = at & 0xFFFFFFFF == _AT_WORKING_DIRECTORY
            link = "cwd" if working else f"fd/{at & 0xFFFFFFFF}"
            name = f"{_link(call, link)}/{name}"
        return self._below(os.path.normpath(name))

    def _memory_text(self, call: Call, address: int) -> str:
        # Up to the end of its page, because the next one may not be there.
        text = b""
        while b"\0" not in text and len(text) < _PATH_BYTES_MAX:
            start = address + len(text)
            text += self._memory(call, start, 4096 - start % 4096)
        return os.fsdecode(text.partition(b"\0")[0])

    def _below(self, path: str) -> str | None:
        if path == self._root:
            return "."
        prefix = self._root + "/"
        return path.removeprefix(prefix) if path.startswith(prefix) else None

    def _position(self, call: Call, descriptor: int, path: str) -> int:
        lines = Path(f"/proc/{call.thread}/fdinfo/{descriptor}").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines[:2])
        if int(fields["flags"], 8) & os.O_APPEND:
            return Path(self._root, path).stat().st_size
        return int(fields["pos"])


def _link(call: Call, name: str) -> str:
    return str(Path(f"/proc/{call.thread}/{name}").readlink())


_READERS: Final[dict[str, Callable[[Recorder, Call], Iterator[Event]]]] = {
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2"), Recorder.writes),
    **dict.fromkeys(("open", "openat", "creat"), Recorder.opens),
    **dict.fromkeys(("truncate", "ftruncate"), Recorder.truncates),
    "fallocate": Recorder.allocates,
    **dict.fromkeys(("fsync", "fdatasync"), Recorder.syncs),
    **dict.fromkeys(("mkdir", "mkdirat"), Recorder.makes),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), Recorder.removes),
    **dict.fromkeys(("rename", "renameat", "renameat2"), Recorder.renames),
    **dict.fromkeys(("link", "linkat"), Recorder.links),
}
