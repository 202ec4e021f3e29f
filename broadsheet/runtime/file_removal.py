"""The removal of files that are long."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

LONG_BYTES: Final = 8 << 20
"""Length from which a file's content is freed on another thread; less is freed in about a millisecond."""


def remove_file(path: Path) -> None:
    """Remove a file's name, and wait for nothing that grows with its length.

    A system frees the content with the last use of the file: on ext4, 0.1 s for a gigabyte of which memory has pages.
    So the file is in use until another thread has closed it.

    Raises:
        OSError: it cannot be removed, for example because it is not there.
    """
    if path.stat().st_size < LONG_BYTES:
        path.unlink()
        return
    try:
        last_use = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        path.unlink()  # It needs no descriptor, of which a process may have too many, nor a right to read.
        return
    try:
        path.unlink()
    finally:
        try:
            threading.Thread(target=os.close, args=(last_use,), name=f"free {path.name}").start()
        except RuntimeError:  # The system has no more threads for us, or the interpreter ends.
            os.close(last_use)
