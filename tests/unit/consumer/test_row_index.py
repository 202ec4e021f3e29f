"""What both row indexes answer alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.consumer.keyed.row_index import MemoryIndex, RocksIndex, RowIndex


@pytest.fixture(params=["memory", "rocksdb"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RowIndex]:
    """An index."""
    made = MemoryIndex() if request.param == "memory" else RocksIndex(tmp_path / "index")
    yield made
    made.close()


def test_names_are_those_of_a_scan_whatever_the_range(index: RowIndex) -> None:
    """They are asked for where values are large, and not wanted."""
    index.write({b"%03d" % number: b"%d" % number for number in range(0, 100, 2)})
    index.write({b"010": None})

    for begin, end, limit in [(b"000", b"100", 7), (b"009", b"013", 9), (b"05", b"050", 9)]:
        found = index.names(begin, end, limit)
        assert found == [name for name, _ in index.scan(begin, end, limit)]
    assert index.names(b"009", b"015", 9) == [b"012", b"014"]
    assert index.names(b"050", b"050", 9) == index.names(b"060", b"050", 9) == []
