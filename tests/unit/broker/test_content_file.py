"""The file that readers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.broker.content_file import ContentFile


def test_content_file_read_cached_gives_all_or_nothing(tmp_path: Path) -> None:
    """What was just written is in memory; a range that is not wholly there is left to a read that may wait."""
    path = tmp_path / "open"
    path.write_bytes(b"0123456789")
    file = ContentFile.open_growing(path)

    cached = file.read_cached_or_none(4, 3)
    beyond = file.read_cached_or_none(4, 8)

    file.release()
    assert cached in (b"3456", None)  # some filesystems cannot tell
    assert beyond is None


def test_content_file_read_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    """A file shorter than its span has lost content: nobody may take it for the end."""
    path = tmp_path / "open"
    path.write_bytes(b"0123456789")
    file = ContentFile.open_sealed(path)

    with pytest.raises(OSError, match="ends at 10"):
        file.read(4, 8)

    file.release()
