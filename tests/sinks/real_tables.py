"""`IcebergStore`, put to the suite of every store. Too slow for CI: `make nightly-sinks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.testing.stores.suite import StoreConformance
from tests.support.table_sinks import IcebergSubject


class TestIcebergStore(StoreConformance):
    """Tables on the disk, with a catalog in SQLite."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> IcebergSubject:
        """Tables below the test's directory."""
        return IcebergSubject(tmp_path)
