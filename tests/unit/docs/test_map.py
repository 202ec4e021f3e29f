"""The map of the house in docs/architecture.md, beside the tree that it draws."""

from __future__ import annotations

import re

from tests.support.documents import REPOSITORY, product_folders

_PACKAGES = tuple(
    str(folder.relative_to(REPOSITORY)) for folder in product_folders() if folder.name != "examples"
)
_BLOCK = re.compile(r"^## The house\n.*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROOM = re.compile(r"( *)([\w.-]+/?)(?: |$)")
_INDENT = 2
_DEPTH = 2
"""Folders below a package that the map shows; what is deeper is its room's own business."""


def _mapped() -> list[str]:
    """Return each place that the map draws, as a path; folders end with a slash."""
    block = _BLOCK.search((REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8"))
    assert block is not None, "docs/architecture.md has no map below `## The house`"
    above: list[str] = []
    places: list[str] = []
    for line in block[1].splitlines():
        room = _ROOM.match(line)
        assert room is not None, f"not a line of a map: {line!r}"
        del above[len(room[1]) // _INDENT :]
        places.append("".join(above) + room[2])
        above.append(room[2])
    return places


def test_map_shows_every_package_and_no_other() -> None:
    """Each package down to the second folder is on the map: a room that is not there is not found by a newcomer."""
    rooms = {
        f"{init.parent.relative_to(REPOSITORY)}/"
        for package in _PACKAGES
        for depth in range(_DEPTH + 1)
        for init in (REPOSITORY / package).glob("*/" * depth + "__init__.py")
        if not any(folder.is_symlink() for folder in init.relative_to(REPOSITORY).parents)
    }

    drawn = {place for place in _mapped() if place.endswith("/")}

    assert rooms <= drawn, f"not on the map: {sorted(rooms - drawn)}"
    packages = {place for place in drawn if place.partition("/")[0] in _PACKAGES}
    assert packages <= rooms, f"on the map only: {sorted(packages - rooms)}"


def test_map_names_each_place_once_and_it_exists() -> None:
    """Files and folders on the map exist, and none stands there twice with two descriptions."""
    places = _mapped()

    assert len(places) == len(set(places))
    assert [place for place in places if not (REPOSITORY / place).exists()] == []
