"""A broker's data directory, damaged in one place: mutants choose the file, the kind of damage and the position."""

from __future__ import annotations

import atexit
import shutil
import struct
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

from tests.fuzz.decoder import FuzzedDecoder
from tests.support.damaged_roots import Damage, Kind, Root, make_root, problems_of

_CHOICE: Final = struct.Struct("<HBIB")
"""File, kind of damage, position, bit."""
_COST: Final = 25


@lru_cache(maxsize=1)
def _root() -> Root:
    """Return the root that all mutants damage, made once."""
    place = Path(tempfile.mkdtemp(prefix="fuzzed-root-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return make_root(place / "root")


def _seeds() -> list[bytes]:
    _root()
    return [_CHOICE.pack(file, kind, 7 * file, file % 8) for file, kind in enumerate(Kind)]


def _start_over(data: bytes) -> None:
    """Damage the root as the bytes say, start over it, and raise AssertionError for what must not be."""
    root = _root()
    file, kind, position, bit = _CHOICE.unpack(data[: _CHOICE.size].ljust(_CHOICE.size, b"\0"))
    path, size = sorted(root.sizes.items())[file % len(root.sizes)]
    damage = Damage(path, Kind(kind % len(Kind)), position % max(size, 1), bit % 8)
    problems = problems_of(root, damage)
    assert not problems, f"{damage}: {'; '.join(problems)}"


DATA_ROOT_DECODER: Final = FuzzedDecoder("broker.data_root", _seeds, _start_over, (), cost=_COST)
