"""Stores of shards' state, parts for writing a new store, and the conformance suites that test one.

`RocksDbStore` needs the extra `[rocksdb]`, `AggregateStore` `[aggregate]`; showing a store's tables needs `[spark]`
(pyarrow).
"""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.consumer.application import SegmentKeeper
    from broadsheet.consumer.errors import StoreClosedError, StoreError, StoreUnavailableError
    from broadsheet.consumer.local_state import (
        LocalState,
        directory_name,
        remove_if_there,
        replace_file,
    )
    from broadsheet.consumer.recoverylog.recorder import FileRecorder
    from broadsheet.consumer.state_tables import CopyReader, ScannableStore, TableScan
    from broadsheet.consumer.stores.aggregate.aggregates import Aggregates
    from broadsheet.consumer.stores.aggregate.columns import (
        Count,
        Distinct,
        Last,
        Max,
        Min,
        Quantiles,
        Sum,
    )
    from broadsheet.consumer.stores.aggregate.store import AggregateStore
    from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
    from broadsheet.consumer.stores.conformance.recorded_suite import RecordedStoreConformance
    from broadsheet.consumer.stores.conformance.scan_suite import (
        RecordedScanConformance,
        ScanConformance,
    )
    from broadsheet.consumer.stores.conformance.subject import RecordedSubject, StoreSubject
    from broadsheet.consumer.stores.conformance.suite import StoreConformance
    from broadsheet.consumer.stores.json_file import JsonFileStore
    from broadsheet.consumer.stores.rocksdb.store import RocksDbStore
    from broadsheet.consumer.stores.sql import SqlStore
    from broadsheet.consumer.stores.sqlite.store import SqliteStore

__all__ = [
    "AggregateStore",
    "Aggregates",
    "CommitSteps",
    "CommitThread",
    "CopyReader",
    "Count",
    "Distinct",
    "FileRecorder",
    "JsonFileStore",
    "Last",
    "LocalState",
    "Max",
    "Min",
    "Quantiles",
    "RecordedScanConformance",
    "RecordedStoreConformance",
    "RecordedSubject",
    "RocksDbStore",
    "ScanConformance",
    "ScannableStore",
    "SegmentKeeper",
    "SqlStore",
    "SqliteStore",
    "StoreClosedError",
    "StoreConformance",
    "StoreError",
    "StoreSubject",
    "StoreUnavailableError",
    "Sum",
    "TableScan",
    "directory_name",
    "remove_if_there",
    "replace_file",
]

if (
    not TYPE_CHECKING
):  # Hidden from type checkers, because `__getattr__` would make them accept any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AggregateStore": "broadsheet.consumer.stores.aggregate.store",
            "Aggregates": "broadsheet.consumer.stores.aggregate.aggregates",
            "CommitSteps": "broadsheet.consumer.stores.commit_thread",
            "CommitThread": "broadsheet.consumer.stores.commit_thread",
            "CopyReader": "broadsheet.consumer.state_tables",
            "Count": "broadsheet.consumer.stores.aggregate.columns",
            "Distinct": "broadsheet.consumer.stores.aggregate.columns",
            "FileRecorder": "broadsheet.consumer.recoverylog.recorder",
            "JsonFileStore": "broadsheet.consumer.stores.json_file",
            "Last": "broadsheet.consumer.stores.aggregate.columns",
            "LocalState": "broadsheet.consumer.local_state",
            "Max": "broadsheet.consumer.stores.aggregate.columns",
            "Min": "broadsheet.consumer.stores.aggregate.columns",
            "Quantiles": "broadsheet.consumer.stores.aggregate.columns",
            "RecordedScanConformance": "broadsheet.consumer.stores.conformance.scan_suite",
            "RecordedStoreConformance": "broadsheet.consumer.stores.conformance.recorded_suite",
            "RecordedSubject": "broadsheet.consumer.stores.conformance.subject",
            "RocksDbStore": "broadsheet.consumer.stores.rocksdb.store",
            "ScanConformance": "broadsheet.consumer.stores.conformance.scan_suite",
            "ScannableStore": "broadsheet.consumer.state_tables",
            "SegmentKeeper": "broadsheet.consumer.application",
            "SqlStore": "broadsheet.consumer.stores.sql",
            "SqliteStore": "broadsheet.consumer.stores.sqlite.store",
            "StoreClosedError": "broadsheet.consumer.errors",
            "StoreConformance": "broadsheet.consumer.stores.conformance.suite",
            "StoreError": "broadsheet.consumer.errors",
            "StoreSubject": "broadsheet.consumer.stores.conformance.subject",
            "StoreUnavailableError": "broadsheet.consumer.errors",
            "Sum": "broadsheet.consumer.stores.aggregate.columns",
            "TableScan": "broadsheet.consumer.state_tables",
            "directory_name": "broadsheet.consumer.local_state",
            "remove_if_there": "broadsheet.consumer.local_state",
            "replace_file": "broadsheet.consumer.local_state",
        },
    )
