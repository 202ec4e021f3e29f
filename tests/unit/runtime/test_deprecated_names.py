"""Deprecated names of a door, as docs/stability.md promises them."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_DOOR = """
from typing import TYPE_CHECKING
from broadsheet.runtime.door import Renamed, public_names
if TYPE_CHECKING:
    from renaming_home import NewName as NewName
if not TYPE_CHECKING:
    __getattr__, __dir__ = public_names(__name__, {"OldName": Renamed("NewName", goes_in="0.4")})
"""


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import a package whose public name has had another name before."""
    (tmp_path / "renaming_home.py").write_text("class NewName: ...\n")
    (tmp_path / "renaming_door.py").write_text(_DOOR)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("renaming_door")
    for name in ("renaming_door", "renaming_home"):
        sys.modules.pop(name, None)


def test_deprecated_name_gives_its_successor_and_a_warning_at_each_place(door: ModuleType) -> None:
    """Programs go on for as long as promised, and each line that must change is told."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        first, second = door.OldName, door.OldName

    assert first is second is door.NewName
    assert [str(warning.message) for warning in told] == [
        "renaming_door.OldName is deprecated and goes in 0.4; use NewName"
    ] * 2
    assert {warning.filename for warning in told} == {__file__}


def test_deprecated_name_is_not_listed(door: ModuleType) -> None:
    """`import *`, completion and the reference offer the name that stays."""
    assert door.__all__ == ["NewName"]
    assert "OldName" not in dir(door)
