"""Text of the standard streams: UTF-8 whatever the locale says, as specs in files are."""

from __future__ import annotations

import io
import sys


def read_standard_input() -> str:
    """Return the text of standard input.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    return io.StringIO(sys.stdin.buffer.read().decode("utf-8"), newline=None).read()


def write_utf8() -> None:
    """Write UTF-8 to files and pipes, so that what a command lists can be applied; a terminal has its own encoding."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8")
