"""The limit of open files that servers raise."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from broadsheet.runtime.open_files import OPEN_FILES_MAX, raise_open_files_limit

LOW = 512


@pytest.fixture
def low_limit() -> Iterator[int]:
    """Have a low soft limit; yield the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_soft_limit_of_open_files_is_raised_to_the_hard_one(low_limit: int) -> None:
    """A broker whose soft limit is the usual 1,024 ended at 500 journals, though it might have raised it itself."""
    bounded = OPEN_FILES_MAX if low_limit == resource.RLIM_INFINITY else low_limit

    assert raise_open_files_limit() == min(bounded, OPEN_FILES_MAX)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(bounded, OPEN_FILES_MAX)
    assert raise_open_files_limit() == min(bounded, OPEN_FILES_MAX)
