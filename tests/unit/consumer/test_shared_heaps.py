"""How many heaps the threads of a process that serves allocate from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from broadsheet.runtime.interpreter import ARENAS_MAX, ARENAS_VARIABLE

THREADS = 12
_HEAPS = f"""
import ctypes
import re
import tempfile
import threading
from broadsheet.runtime.interpreter import serve_only

serve_only()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
everybody = threading.Barrier({THREADS} + 1)


def allocate():
    libc.malloc(4096)
    everybody.wait()
    everybody.wait()


for _ in range({THREADS}):
    threading.Thread(target=allocate).start()
everybody.wait()
libc.fopen.restype, libc.malloc_info.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
with tempfile.NamedTemporaryFile() as file:
    stream = libc.fopen(file.name.encode(), b"w")
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(file.read().decode().count("<heap nr="))
everybody.wait()
"""


def _heaps(variables: Mapping[str, str]) -> int:
    """Return how many heaps a process has whose dozen threads all allocate. Process-wide, hence a process."""
    inherited = {name: value for name, value in os.environ.items() if name != ARENAS_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", _HEAPS],
        check=True,
        capture_output=True,
        env={**inherited, **variables},
    )
    return int(done.stdout)


def test_threads_share_few_heaps() -> None:
    """A dozen threads that allocate at the same time, as gRPC's and the disk's do. glibc would make a heap for each,
    and what is free in one would serve no other.
    """
    assert 1 <= _heaps({}) <= ARENAS_MAX


def test_number_of_heaps_in_the_environment_stands() -> None:
    """An operator chose another number, as one may for any program."""
    assert ARENAS_MAX < _heaps({ARENAS_VARIABLE: "5"}) <= 5
