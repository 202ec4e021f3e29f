"""The system calls that are taken down, and the filter that has the kernel report them to another process.

The kernel holds a reported call until the recorder has read its arguments, so none is missed, whether Python, SQLite,
RocksDB or another library makes it. Nothing needs to be compiled, and no privilege is needed.

Source: seccomp_unotify(2), linux/seccomp.h, linux/filter.h, the tables of system calls of both machines.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from functools import cache
from typing import Final, NamedTuple

NAMES: Final = {
    "x86_64": {
        "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74,
        "fdatasync": 75, "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84,
        "creat": 85, "link": 86, "unlink": 87, "openat": 257, "mkdirat": 258, "unlinkat": 263,
        "renameat": 264, "linkat": 265, "fallocate": 285, "pwritev": 296, "renameat2": 316,
        "copy_file_range": 326, "pwritev2": 328, "io_uring_setup": 425, "ioctl": 16,
    },
    "aarch64": {
        "ioctl": 29, "mkdirat": 34, "unlinkat": 35, "linkat": 37, "renameat": 38, "truncate": 45,
        "ftruncate": 46, "fallocate": 47, "openat": 56, "write": 64, "writev": 66, "pwrite64": 68,
        "pwritev": 70, "sendfile": 71, "fsync": 82, "fdatasync": 83, "renameat2": 276,
        "copy_file_range": 285, "pwritev2": 287, "io_uring_setup": 425,
    },
}  # fmt: skip
_REFUSED: Final = {
    "copy_file_range": errno.ENOSYS,
    "sendfile": errno.ENOSYS,
    "io_uring_setup": errno.ENOSYS,
}
"""Ways of writing whose bytes no argument holds; callers fall back on others."""
_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_FICLONE: Final = 0x40049409
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_PR_SET_NO_NEW_PRIVS = 38
_ALLOW, _NOTIFY, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _SECOND_ARGUMENT_AT = 0, 4, 24
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
_ANSWER: Final = struct.Struct("=QqiI")
RECEIVE: Final = 3 << 30 | _NOTICE.size << 16 | ord("!") << 8
SEND: Final = 3 << 30 | _ANSWER.size << 16 | ord("!") << 8 | 1
_CONTINUE: Final = 1


class Call(NamedTuple):
    """A system call that a thread is about to make."""

    id: int
    thread: int
    name: str
    arguments: tuple[int, ...]


@cache
def _reported() -> dict[int, str]:
    names = NAMES[platform.machine()]
    return {
        number: name for name, number in names.items() if name not in _REFUSED and name != "ioctl"
    }


def _program() -> bytes:
    """Return the filter: instructions of (code u16, jump if true u8, jump if false u8, operand u32)."""
    names = NAMES[platform.machine()]
    tests: list[tuple[int, int]] = [(number, _NOTIFY) for number in _reported()]
    tests += [(names[name], _ERRNO | code) for name, code in _REFUSED.items()]
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_IF_EQUAL, 1, 0, _ARCHITECTURES[platform.machine()]),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for number, verdict in tests:
        instructions += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, verdict)]
    instructions += [
        (_JUMP_IF_EQUAL, 0, 3, names["ioctl"]),
        (_LOAD, 0, 0, _SECOND_ARGUMENT_AT),
        (_JUMP_IF_EQUAL, 0, 1, _FICLONE),
        (_RETURN, 0, 0, _ERRNO | errno.EOPNOTSUPP),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def install() -> int:
    """Have this thread, and those that it starts, report their calls; return the descriptor to listen on.

    Raises:
        OSError: the kernel is older than Linux 5.5, or the sandbox around us forbids it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")
    program = ctypes.create_string_buffer(_program())
    header = struct.pack("=H6xQ", (len(program) - 1) // 8, ctypes.addressof(program))
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        listener = libc.syscall(_SECCOMP[platform.machine()], _SET_MODE_FILTER, flags, header)
        if listener >= 0:
            return int(listener)
    raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def receive(listener: int) -> Call | None:
    """Wait for the next call; None if its thread is gone."""
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(listener, RECEIVE, notice)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    call, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice)
    return Call(call, thread, _reported()[number], tuple(arguments))


def answer(listener: int, call: Call, *, error: int = 0) -> bool:
    """Let a call proceed, or fail with an error; return False if its thread is gone, and the call with it."""
    try:
        fcntl.ioctl(listener, SEND, _ANSWER.pack(call.id, 0, -error, 0 if error else _CONTINUE))
    except FileNotFoundError:
        return False
    return True
