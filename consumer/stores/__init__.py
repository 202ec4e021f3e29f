"""Stores of shards' state, parts for writing a new store, and the conformance suites that test one.

`RocksDbStore` needs the extra `[rocksdb]`, `AggregateStore` `[aggregate]`, `KafkaStore` `[kafka]`, `DeltaStore`
`[delta]`, `IcebergStore` `[iceberg]`; showing a store's tables needs `[spark]` (pyarrow).
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.consumer.application import SegmentKeeper as SegmentKeeper
    from broadsheet.consumer.errors import (
        StoreClosedError as StoreClosedError,
        StoreError as StoreError,
        StoreUnavailableError as StoreUnavailableError,
    )
    from broadsheet.consumer.recoverylog.local_state import (
        LocalState as LocalState,
        directory_name as directory_name,
        remove_if_there as remove_if_there,
        replace_file as replace_file,
    )
    from broadsheet.consumer.recoverylog.recorder import FileRecorder as FileRecorder
    from broadsheet.consumer.stores.aggregate.aggregates import Aggregates as Aggregates
    from broadsheet.consumer.stores.aggregate.columns import (
        Count as Count,
        Distinct as Distinct,
        Last as Last,
        Max as Max,
        Min as Min,
        Quantiles as Quantiles,
        Sum as Sum,
    )
    from broadsheet.consumer.stores.aggregate.store import AggregateStore as AggregateStore
    from broadsheet.consumer.stores.commit_thread import (
        CommitSteps as CommitSteps,
        CommitThread as CommitThread,
    )
    from broadsheet.consumer.stores.delta.store import DeltaStore as DeltaStore
    from broadsheet.consumer.stores.iceberg.store import IcebergStore as IcebergStore
    from broadsheet.consumer.stores.json_file import JsonFileStore as JsonFileStore
    from broadsheet.consumer.stores.kafka.store import KafkaStore as KafkaStore
    from broadsheet.consumer.stores.rocksdb.store import RocksDbStore as RocksDbStore
    from broadsheet.consumer.stores.sql import SqlStore as SqlStore
    from broadsheet.consumer.stores.sqlite.store import SqliteStore as SqliteStore
    from broadsheet.consumer.stores.state_tables import (
        CopyReader as CopyReader,
        ScannableStore as ScannableStore,
        TableScan as TableScan,
    )

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
