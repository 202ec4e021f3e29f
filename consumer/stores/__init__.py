"""Stores: where shards keep their state, parts for a store of your own, and the suites that hold it to the contract.

`RocksDbStore` needs the extra `[rocksdb]`; to show a store's tables takes `[spark]` (pyarrow).
"""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from consumer.application import SegmentKeeper
    from consumer.errors import StoreClosedError, StoreError, StoreUnavailableError
    from consumer.local_state import LocalState, remove_if_there, replace_file
    from consumer.recoverylog.recorder import FileRecorder
    from consumer.state_tables import CopyReader, ScannableStore, TableScan
    from consumer.stores.commit_thread import CommitThread
    from consumer.stores.conformance.recorded_suite import RecordedStoreConformance
    from consumer.stores.conformance.scan_suite import RecordedScanConformance, ScanConformance
    from consumer.stores.conformance.subject import RecordedSubject, StoreSubject
    from consumer.stores.conformance.suite import StoreConformance
    from consumer.stores.json_file import JsonFileStore
    from consumer.stores.rocksdb.store import RocksDbStore
    from consumer.stores.sql import SqlStore
    from consumer.stores.sqlite.store import SqliteStore

__all__ = [
    "CommitThread",
    "CopyReader",
    "FileRecorder",
    "JsonFileStore",
    "LocalState",
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
    "TableScan",
    "remove_if_there",
    "replace_file",
]

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "CommitThread": "consumer.stores.commit_thread",
            "CopyReader": "consumer.state_tables",
            "FileRecorder": "consumer.recoverylog.recorder",
            "JsonFileStore": "consumer.stores.json_file",
            "LocalState": "consumer.local_state",
            "RecordedScanConformance": "consumer.stores.conformance.scan_suite",
            "RecordedStoreConformance": "consumer.stores.conformance.recorded_suite",
            "RecordedSubject": "consumer.stores.conformance.subject",
            "RocksDbStore": "consumer.stores.rocksdb.store",
            "ScanConformance": "consumer.stores.conformance.scan_suite",
            "ScannableStore": "consumer.state_tables",
            "SegmentKeeper": "consumer.application",
            "SqlStore": "consumer.stores.sql",
            "SqliteStore": "consumer.stores.sqlite.store",
            "StoreClosedError": "consumer.errors",
            "StoreConformance": "consumer.stores.conformance.suite",
            "StoreError": "consumer.errors",
            "StoreSubject": "consumer.stores.conformance.subject",
            "StoreUnavailableError": "consumer.errors",
            "TableScan": "consumer.state_tables",
            "remove_if_there": "consumer.local_state",
            "replace_file": "consumer.local_state",
        },
    )
