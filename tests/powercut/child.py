"""Processes that are recorded.

python -m tests.powercut.child DESCRIPTOR MODULE…

It loads the modules, because that takes longer than most lives, and forks a process for each request on the socket
DESCRIPTOR. That process has the kernel report its calls from then on, hands the listening end to the recorder, and
calls the module's `main(arguments)`.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from typing import Final

import msgspec

from broadsheet.runtime.private_directory import keep_new_files_private
from tests.powercut.syscalls import install

REQUEST_BYTES_MAX: Final = 1 << 16


class Request(msgspec.Struct, frozen=True):
    """A process to start."""

    module: str
    arguments: list[str]


class Started(msgspec.Struct, frozen=True):
    """The answer, which comes with the descriptor to listen on."""

    pid: int


class Ended(msgspec.Struct, frozen=True):
    """The second answer, after its end."""

    status: int
    """As `os.waitstatus_to_exitcode` gives it."""


def main() -> None:
    """Serve requests until the other end closes."""
    descriptor, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    with socket.socket(fileno=int(descriptor)) as recorder:
        while content := recorder.recv(REQUEST_BYTES_MAX):
            request = msgspec.json.decode(content, type=Request)
            pid = os.fork()
            if not pid:
                _live(recorder, request)
            _, status = os.waitpid(pid, 0)
            recorder.send(msgspec.json.encode(Ended(os.waitstatus_to_exitcode(status))))


def _live(recorder: socket.socket, request: Request) -> None:
    """Run a program, and end the process; never returns."""
    status = 1
    keep_new_files_private()
    try:
        listener = install()
        # `sendmsg` is not reported, so it needs no listener.
        socket.send_fds(recorder, [msgspec.json.encode(Started(os.getpid()))], [listener])
        os.close(listener)
        recorder.close()
        sys.modules[request.module].main(request.arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
