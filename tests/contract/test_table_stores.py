"""Stores that are lake tables, put to the suite of every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.testing.stores.suite import StoreConformance
from tests.support.table_sinks import DeltaSubject


class TestDeltaStore(StoreConformance):
    """Tables on the disk; a reader of Delta sees what a query of another store would."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> DeltaSubject:
        """Tables below the test's directory."""
        return DeltaSubject(tmp_path)
