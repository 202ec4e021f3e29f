"""Every record store that we ship, over real servers, put to the suite that we ship for any."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.testing.leases.suite import RecordStoreConformance
from tests.support.lease_stores import EtcdSubject, SqlSubject, etcd_subject, sql_subject


@pytest.mark.etcd
class TestEtcdRecordStore(RecordStoreConformance):
    """A real server."""

    @pytest.fixture
    async def subject(self, etcd_server: EmbeddedEtcdProcess) -> AsyncIterator[EtcdSubject]:
        """A root of the test's own."""
        async with etcd_subject(etcd_server.endpoint) as subject:
            yield subject


class TestSqlRecordStoreOnSqlite(RecordStoreConformance):
    """A file that two engines share."""

    many_records = 120

    @pytest.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[SqlSubject]:
        """A file in the test's directory."""
        async with sql_subject(f"sqlite:///{tmp_path}/leases.db") as subject:
            yield subject


@pytest.mark.postgresql
class TestSqlRecordStoreOnPostgresql(RecordStoreConformance):
    """A real server."""

    many_records = 120

    @pytest.fixture
    async def subject(self, postgresql_url: str) -> AsyncIterator[SqlSubject]:
        """A table of the test's own."""
        async with sql_subject(postgresql_url) as subject:
            yield subject
