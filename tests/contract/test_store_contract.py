"""Every store that we ship, put to the suite that we ship for any store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.testing.shards.stores import RecordedStore
from broadsheet.testing.stores.recorded_suite import RecordedStoreConformance
from broadsheet.testing.stores.scan_suite import RecordedScanConformance, ScanConformance
from broadsheet.testing.stores.subject import RecordedSubject
from broadsheet.testing.stores.suite import StoreConformance
from tests.support.store_subjects import (
    AGGREGATE_ROWS,
    JSON_ROWS,
    KEYED_ROWS,
    ROCKSDB_ROWS,
    SQL_ROWS,
    AggregateSubject,
    FencedRowSubject,
    JsonSubject,
    KeyedStateSubject,
    KeyedSubject,
    RocksDbSubject,
    ScannedRecordedSubject,
    SqliteSubject,
    SqlSubject,
    committed_aggregates,
    committed_keyed,
    committed_keyed_values,
    committed_rows,
    committed_values,
    keyed_application,
    put_keyed,
    put_keyed_value,
    put_last,
    put_number,
    put_row,
    put_value,
    recorded_aggregates,
    recorded_keyed,
    recorded_rocksdb,
    recorded_sqlite,
)


class TestJsonFileStore(StoreConformance, ScanConformance):
    """In a directory that stays."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> JsonSubject:
        """Files below the test's directory."""
        return JsonSubject(tmp_path)


class TestSqlStoreOnSqlite(StoreConformance, ScanConformance):
    """All shards in one file."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[SqlSubject]:
        """A file in the test's directory."""
        engine = sa.create_engine(f"sqlite:///{tmp_path}/state.db")
        yield SqlSubject(engine)
        engine.dispose()


@pytest.mark.postgresql
class TestSqlStoreOnPostgresql(StoreConformance, ScanConformance):
    """A real server."""

    @pytest.fixture
    def subject(self, postgresql_url: str) -> Iterator[SqlSubject]:
        """A table of the test's own."""
        engine = sa.create_engine(postgresql_url)
        yield SqlSubject(engine)
        engine.dispose()


class TestSqliteStore(StoreConformance, ScanConformance):
    """In a directory that stays."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> SqliteSubject:
        """Files below the test's directory."""
        return SqliteSubject(tmp_path)


class TestRocksDbStore(StoreConformance, ScanConformance):
    """In a directory that stays."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RocksDbSubject:
        """Files below the test's directory."""
        return RocksDbSubject(tmp_path)


class TestAggregateStore(StoreConformance, ScanConformance):
    """In a directory that stays."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> AggregateSubject:
        """Files below the test's directory."""
        return AggregateSubject(tmp_path)


class TestKeyedStore(StoreConformance):
    """In a directory that stays, with its index in RocksDB there."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> KeyedSubject:
        """Files below the test's directory."""
        return KeyedSubject(tmp_path, "rocksdb")


class TestKeyedStoreInMemory(StoreConformance):
    """In a directory that stays, with its index in memory."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> KeyedSubject:
        """Files below the test's directory."""
        return KeyedSubject(tmp_path, "memory")


class TestKeyedState(ScanConformance):
    """Keyed state as a table, with the index in RocksDB: its other promises are those of `KeyedStore`."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> KeyedStateSubject:
        """Files below the test's directory."""
        return KeyedStateSubject(tmp_path, "rocksdb")


class TestRecordedKeyedState(RecordedScanConformance):
    """The same of what a standby played, with the index in memory."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""
        return ScannedRecordedSubject(
            tmp_path,
            scans=KEYED_ROWS,
            new_store=keyed_application("memory").new_store,
            put=put_keyed_value,
            committed=committed_keyed_values,
        )


class TestRecordedJsonFileStore(RecordedStoreConformance, RecordedScanConformance):
    """In a recovery log."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""

        def put(store: JsonFileStore[dict[str, int]], key: str, value: int) -> None:
            store.state[key] = value

        return ScannedRecordedSubject(
            tmp_path,
            scans=JSON_ROWS,
            new_store=partial(
                JsonFileStore[dict[str, int]],
                directory=tmp_path / "not used",
                initial={},
                state_type=dict[str, int],
            ),
            put=put,
            committed=JsonFileStore[dict[str, int]].committed_state,
        )


class TestRecordedSqliteStore(RecordedStoreConformance, RecordedScanConformance):
    """In a recovery log."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""
        return ScannedRecordedSubject(
            tmp_path,
            scans=SQL_ROWS,
            new_store=recorded_sqlite,
            put=put_row,
            committed=committed_rows,
        )


class TestRecordedRocksDbStore(RecordedStoreConformance, RecordedScanConformance):
    """In a recovery log."""

    commits = 5
    """It syncs its files whenever it opens; larger logs are cut in its own tests."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""
        return ScannedRecordedSubject(
            tmp_path,
            scans=ROCKSDB_ROWS,
            new_store=recorded_rocksdb,
            put=put_value,
            committed=committed_values,
        )


class TestRecordedAggregateStore(RecordedStoreConformance, RecordedScanConformance):
    """In a recovery log."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""
        return ScannedRecordedSubject(
            tmp_path,
            scans=AGGREGATE_ROWS,
            new_store=recorded_aggregates,
            put=put_last,
            committed=committed_aggregates,
        )


class TestRecordedKeyedStore(RecordedStoreConformance):
    """In a recovery log; the index in RocksDB is made from it."""

    commits = 3
    """It makes a RocksDB whenever it opens; longer logs are cut with the index in memory."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""
        return RecordedSubject(
            tmp_path,
            new_store=partial(recorded_keyed, index="rocksdb"),
            put=put_keyed,
            committed=committed_keyed,
        )


class TestRecordedKeyedStoreInMemory(RecordedStoreConformance):
    """In a recovery log, with the index in memory."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""
        return RecordedSubject(
            tmp_path,
            new_store=partial(recorded_keyed, index="memory"),
            put=put_keyed,
            committed=committed_keyed,
        )


class TestSimulatedRecordedStore(RecordedStoreConformance):
    """The simulator's, in a recovery log."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> RecordedSubject:
        """A log in memory."""
        return RecordedSubject(
            tmp_path,
            new_store=RecordedStore,
            put=put_number,
            committed=RecordedStore.committed_state,
        )


class TestSimulatedFencedRowStore(StoreConformance):
    """The simulator's, in a table in memory."""

    @pytest.fixture
    def subject(self) -> FencedRowSubject:
        """A table of the test's own."""
        return FencedRowSubject()
