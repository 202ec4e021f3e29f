"""The process's limit of open files, which servers raise as far as they may."""

from __future__ import annotations

import resource
from typing import Final

OPEN_FILES_MAX: Final = 1 << 20
"""More than this is not asked for, where the hard limit is infinite."""


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one; return the limit that holds.

    The soft limit is 1,024 on most systems for the sake of programs that call `select`, which ours do not. A broker
    with two files for each of its journals reaches it with some hundreds.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a sandbox may forbid it; then the limit is as it was
        return soft
    return wanted
