"""The conformance suite of stores that show their state as tables (`broadsheet.consumer.stores.state_tables`).

class TestMyStore(StoreConformance, ScanConformance):
    @pytest.fixture
    def subject(self, tmp_path): return MySubject(tmp_path)     # with `scans`, too
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.stores.state_tables import CopyReader, ScannableStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.subject import (
    FixedShard,
    Holders,
    RecordedSubject,
    StoreSubject,
    failure_of,
    reading,
    wait,
)
from broadsheet.wire.shard_pb2 import Checkpoint

COMMITS = 10
"""Number of commits during a scan."""


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """The mapping of a subject's keys and values to a table's rows."""

    table: str
    entry: Callable[[Mapping[str, Any]], tuple[str, int]]
    """Returns key and value of a row, which is given by column. `Any`: the store chooses the columns' types."""


class ScanSubject(StoreSubject, Protocol):
    """A store that shows tables."""

    @property
    def scans(self) -> ScannedRows:
        """The rows in which `put` values are shown."""
        ...


class ScanConformance:
    """The suite for a store that shows tables. A subclass defines a pytest fixture `subject`, a `ScanSubject`."""

    def test_scan_of_a_new_shard_is_empty(self, subject: ScanSubject) -> None:
        """A table is there before the first row, with its columns and an empty checkpoint."""
        with Holders(subject, FixedShard()) as holders:
            store, _ = holders.following()

            assert isinstance(store, ScannableStore)
            assert scanned(subject, store) == ({}, Checkpoint())
            assert store.tables()[subject.scans.table].names

    def test_scan_shows_the_last_commit_and_its_checkpoint(self, subject: ScanSubject) -> None:
        """Neither the running transaction nor an older checkpoint: state and checkpoint belong together."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            wait(store.start_commit(shard, reading(10), ()))
            assert scanned(subject, store) == ({"a": 1}, reading(10))
            subject.put(store, "a", 2)
            subject.put(store, "b", 3)

            assert scanned(subject, store) == ({"a": 1}, reading(10))

            wait(store.start_commit(shard, reading(20), ()))
            assert scanned(subject, store) == ({"a": 2, "b": 3}, reading(20))

    def test_scan_is_of_one_commit_while_transactions_and_queries_go_on(
        self, subject: ScanSubject
    ) -> None:
        """A slow reader blocks no commit and no query, and never sees part of a later commit."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 0)
            wait(store.start_commit(shard, reading(1), ()))

            with store.scan(subject.scans.table) as scan:
                for step in range(1, COMMITS + 1):
                    subject.put(store, "a", step)
                    wait(store.start_commit(shard, reading(1 + step), ()))
                    assert subject.committed(store) == {"a": step}
                rows = [row for batch in scan.batches for row in batch.to_pylist()]

            assert dict(map(subject.scans.entry, rows)) == {"a": 0}
            assert scan.checkpoint == reading(1)
            assert scanned(subject, store) == ({"a": COMMITS}, reading(1 + COMMITS))

    def test_scan_takes_columns_in_the_order_asked_for(self, subject: ScanSubject) -> None:
        """Batches have the schema that the scan told, and that is what was asked for."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            wait(store.start_commit(shard, reading(10), ()))
            table = subject.scans.table
            names = list(reversed(store.tables()[table].names))

            with store.scan(table, names) as scan:
                (batch,) = scan.batches

            assert scan.schema.names == batch.schema.names == names
            with store.scan(table, names[:1]) as scan:
                assert [batch.num_columns for batch in scan.batches] == [1]

    def test_scan_of_what_there_is_not_names_what_there_is(self, subject: ScanSubject) -> None:
        """The mistake of a caller far away, who cannot look."""
        with Holders(subject, FixedShard()) as holders:
            store, _ = holders.following()
            table = subject.scans.table

            no_table = failure_of(lambda: store.scan("no_table").__enter__())
            no_column = failure_of(lambda: store.scan(table, ["no_column"]).__enter__())

            assert isinstance(no_table, ValidationError)
            assert table in str(no_table)
            assert isinstance(no_column, ValidationError)
            assert no_column.field_path == "columns[0]"

    def test_scan_that_is_given_up_leaves_nothing(self, subject: ScanSubject) -> None:
        """A reader may go away in mid-stream; the store can be destroyed at once, and cannot be read any more."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            wait(store.start_commit(shard, reading(10), ()))
            with store.scan(subject.scans.table) as scan:
                next(scan.batches)

            store.destroy()

            assert subject.leftovers(shard) == []


class RecordedScanConformance(ScanConformance):
    """The suite for one that also reads copies. Its `subject` is a `RecordedSubject` with `scans`."""

    def test_copy_of_what_was_played_is_read_and_nobody_is_fenced(self, subject: Any) -> None:
        """A standby shows a commit with its checkpoint, and the primary goes on as if nothing had happened."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            for step in range(1, COMMITS + 1):
                subject.put(store, f"k{step}", step)
                wait(store.start_commit(shard, reading(step), ()))
            expected = subject.committed(store)

            copy = self._copy_reader(subject, shard)

            assert scanned(subject, copy) == (expected, reading(COMMITS))
            copy.destroy()
            subject.put(store, "last", 99)
            wait(store.start_commit(shard, reading(99), ()))

    def test_copy_before_the_first_commit_is_refused_or_empty(self, subject: Any) -> None:
        """A standby of a shard that never had a primary has nothing to show."""
        copy = subject.open_copy(FixedShard())

        error = failure_of(lambda: copy.open_copy())

        assert isinstance(error, StoreError)
        copy.destroy()

    def _copy_reader(self, subject: RecordedSubject, shard: FixedShard) -> Any:
        copy = subject.open_copy(shard)
        assert isinstance(copy, CopyReader)
        copy.open_copy()
        return copy


def scanned(subject: ScanSubject, store: Any) -> tuple[dict[str, int], Checkpoint]:
    """Return what a scan of the subject's table shows, and the checkpoint that it is of."""
    with store.scan(subject.scans.table) as scan:
        rows = [row for batch in scan.batches for row in batch.to_pylist()]
    return dict(map(subject.scans.entry, rows)), scan.checkpoint
