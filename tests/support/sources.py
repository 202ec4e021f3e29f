"""The Python sources of the repository, for tests of rules that every file keeps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.documents import REPOSITORY

HOUSES = (
    "allocator",
    "bench",
    "broadsheet",
    "broker",
    "consumer",
    "examples",
    "journals",
    "leases",
    "spark_bridge",
    "tests",
)


@cache
def our_modules() -> tuple[tuple[str, str], ...]:
    """Return (path from the repository's root, text) of each source that we wrote; generated ones are left out."""
    return tuple(_modules())


def _modules() -> Iterator[tuple[str, str]]:
    for house in HOUSES:
        for path in sorted((REPOSITORY / house).rglob("*.py")):
            # `broadsheet/` links to the other houses.
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")) or _is_linked(path):
                continue
            yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")


def _is_linked(path: Path) -> bool:
    return any(each.is_symlink() for each in (path, *path.parents) if each != REPOSITORY)
