"""Programs at a real terminal, a pseudo-terminal of the kernel: what they print, and what is typed."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Mapping, Sequence

SECONDS_MAX = 60.0


class Terminal:
    """A program whose standard input, output and error are a terminal."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the program.

        Args:
            command: Its path and arguments.
            environment: All of its variables.
        """
        self.output = ""
        """All that it printed, and the echo of what was typed."""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            # A process that ignores Ctrl-C, such as one that runs tests for another, must not pass that on.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(command[0], list(command), dict(environment))  # noqa: S606 - a command of a test

    def wait_for(self, text: str) -> None:
        """Read until the program has printed a text that was not waited for before.

        Raises:
            AssertionError: it ended, or took too long.
        """
        begin, deadline = len(self.output), time.monotonic() + SECONDS_MAX
        while text not in self.output[begin:]:
            assert time.monotonic() < deadline, self.output
            assert self._read(), f"ended without {text!r}: {self.output}"

    def type(self, text: str) -> None:
        """Type a text; a line ends with a carriage return, as of a keyboard."""
        os.write(self._terminal, text.encode())

    def interrupt(self) -> int:
        """Type Ctrl-C until the program ends; return the exit status.

        More than once, as a person would: what comes between a prompt and the read behind it is noticed after the read.
        """
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            self.type("\x03")
            while self._has_news(seconds=1.0):
                if not self._read():
                    return self._status()
        raise AssertionError(f"not interrupted: {self.output}")

    def end(self) -> int:
        """Read to the end; return the exit status."""
        while self._read():
            pass
        return self._status()

    def _status(self) -> int:
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self) -> bool:
        """Read what is there, or wait for it; report whether the program still has the terminal."""
        assert self._has_news(seconds=SECONDS_MAX), self.output
        try:
            content = os.read(self._terminal, 65_536)
        except OSError:  # Linux says so where the last program has closed it.
            return False
        self.output += content.decode(errors="replace")
        return bool(content)

    def _has_news(self, *, seconds: float) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        return bool(ready)
