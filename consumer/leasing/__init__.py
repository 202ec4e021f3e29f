"""Leases and checkpoints: records, their stores, managers in three styles, and workers that share a stream.

Records in DynamoDB need the extra `[aws]`. Records in Azure Blob Storage, and checkpoints for Azure's own event
processor, need `[azure]`.
"""

from typing import TYPE_CHECKING

from broadsheet.allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from broadsheet.consumer.errors import (
        BlockedOnParentError,
        DependencyError,
        InvalidStateError,
        LeaseNotAcquiredError,
        LeasingError,
        ShardClaimedError,
        ShutdownError,
        ThrottlingError,
    )
    from broadsheet.consumer.leasing.addresses import parse_store_address
    from broadsheet.consumer.leasing.blocking import StoreThread
    from broadsheet.consumer.leasing.conformance.suite import (
        RecordStoreConformance,
        RecordStoreSubject,
    )
    from broadsheet.consumer.leasing.expiry import LeaseObserver
    from broadsheet.consumer.leasing.facades.blocking_event_hubs import SyncRecordCheckpointStore
    from broadsheet.consumer.leasing.facades.eph import CheckpointManager, SyncCheckpointManager
    from broadsheet.consumer.leasing.facades.event_hubs import RecordCheckpointStore
    from broadsheet.consumer.leasing.facades.kcl import LeaseManager, SyncLeaseManager
    from broadsheet.consumer.leasing.facades.vmware_go import (
        ShardCheckpointer,
        SyncShardCheckpointer,
    )
    from broadsheet.consumer.leasing.metrics import LeaseMetrics
    from broadsheet.consumer.leasing.opening import open_store
    from broadsheet.consumer.leasing.position import Position
    from broadsheet.consumer.leasing.record import LeaseRecord, RecordConflictError
    from broadsheet.consumer.leasing.record_processor.application import RecordProcessorApplication
    from broadsheet.consumer.leasing.record_processor.kclpy import KclpyProcessor
    from broadsheet.consumer.leasing.record_processor.processor import (
        AsyncRecordProcessor,
        RecordProcessor,
    )
    from broadsheet.consumer.leasing.rules import commit, prepare
    from broadsheet.consumer.leasing.store import RecordStore
    from broadsheet.consumer.leasing.stores.azure.eph import EphRecordStore
    from broadsheet.consumer.leasing.stores.azure.event_hubs import EventHubsRecordStore
    from broadsheet.consumer.leasing.stores.azure.native import BlobRecordStore
    from broadsheet.consumer.leasing.stores.dynamodb.kcl_java import KclJavaLayout
    from broadsheet.consumer.leasing.stores.dynamodb.layout import NativeLayout
    from broadsheet.consumer.leasing.stores.dynamodb.store import DynamoRecordStore
    from broadsheet.consumer.leasing.stores.dynamodb.table import open_dynamodb_client
    from broadsheet.consumer.leasing.stores.dynamodb.vmware_go import (
        VmwareGoLayout,
        WallClockExpiry,
    )
    from broadsheet.consumer.leasing.stores.etcd.store import EtcdRecordStore
    from broadsheet.consumer.leasing.stores.sql.store import SqlRecordStore
    from broadsheet.consumer.leasing.worker.settings import Balancing, WorkerSettings
    from broadsheet.consumer.leasing.worker.source import RecordBatch, RecordSource, SourceShard
    from broadsheet.consumer.leasing.worker.source_conformance import (
        RecordSourceConformance,
        RecordSourceSubject,
    )
    from broadsheet.consumer.leasing.worker.worker import LeaseWorker

__all__ = [
    "AsyncRecordProcessor",
    "Balancing",
    "BlobRecordStore",
    "BlockedOnParentError",
    "CheckpointManager",
    "DependencyError",
    "DynamoRecordStore",
    "EphRecordStore",
    "EtcdRecordStore",
    "EventHubsRecordStore",
    "InvalidStateError",
    "KclJavaLayout",
    "KclpyProcessor",
    "LeaseManager",
    "LeaseMetrics",
    "LeaseNotAcquiredError",
    "LeaseObserver",
    "LeaseRecord",
    "LeaseWorker",
    "LeasingError",
    "NativeLayout",
    "Position",
    "RecordBatch",
    "RecordCheckpointStore",
    "RecordConflictError",
    "RecordProcessor",
    "RecordProcessorApplication",
    "RecordSource",
    "RecordSourceConformance",
    "RecordSourceSubject",
    "RecordStore",
    "RecordStoreConformance",
    "RecordStoreSubject",
    "ShardCheckpointer",
    "ShardClaimedError",
    "ShutdownError",
    "SourceShard",
    "SqlRecordStore",
    "StoreThread",
    "SyncCheckpointManager",
    "SyncLeaseManager",
    "SyncRecordCheckpointStore",
    "SyncShardCheckpointer",
    "ThrottlingError",
    "VmwareGoLayout",
    "WallClockExpiry",
    "WorkerSettings",
    "commit",
    "open_dynamodb_client",
    "open_store",
    "parse_store_address",
    "prepare",
]

# Hidden from type checkers, which would accept any name if they saw `__getattr__`.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AsyncRecordProcessor": "broadsheet.consumer.leasing.record_processor.processor",
            "Balancing": "broadsheet.consumer.leasing.worker.settings",
            "BlobRecordStore": "broadsheet.consumer.leasing.stores.azure.native",
            "BlockedOnParentError": "broadsheet.consumer.errors",
            "CheckpointManager": "broadsheet.consumer.leasing.facades.eph",
            "DependencyError": "broadsheet.consumer.errors",
            "DynamoRecordStore": "broadsheet.consumer.leasing.stores.dynamodb.store",
            "EphRecordStore": "broadsheet.consumer.leasing.stores.azure.eph",
            "EtcdRecordStore": "broadsheet.consumer.leasing.stores.etcd.store",
            "EventHubsRecordStore": "broadsheet.consumer.leasing.stores.azure.event_hubs",
            "InvalidStateError": "broadsheet.consumer.errors",
            "KclJavaLayout": "broadsheet.consumer.leasing.stores.dynamodb.kcl_java",
            "KclpyProcessor": "broadsheet.consumer.leasing.record_processor.kclpy",
            "LeaseManager": "broadsheet.consumer.leasing.facades.kcl",
            "LeaseMetrics": "broadsheet.consumer.leasing.metrics",
            "LeaseNotAcquiredError": "broadsheet.consumer.errors",
            "LeaseObserver": "broadsheet.consumer.leasing.expiry",
            "LeaseRecord": "broadsheet.consumer.leasing.record",
            "LeaseWorker": "broadsheet.consumer.leasing.worker.worker",
            "LeasingError": "broadsheet.consumer.errors",
            "NativeLayout": "broadsheet.consumer.leasing.stores.dynamodb.layout",
            "Position": "broadsheet.consumer.leasing.position",
            "RecordBatch": "broadsheet.consumer.leasing.worker.source",
            "RecordCheckpointStore": "broadsheet.consumer.leasing.facades.event_hubs",
            "RecordConflictError": "broadsheet.consumer.leasing.record",
            "RecordProcessor": "broadsheet.consumer.leasing.record_processor.processor",
            "RecordProcessorApplication": "broadsheet.consumer.leasing.record_processor.application",
            "RecordSource": "broadsheet.consumer.leasing.worker.source",
            "RecordSourceConformance": "broadsheet.consumer.leasing.worker.source_conformance",
            "RecordSourceSubject": "broadsheet.consumer.leasing.worker.source_conformance",
            "RecordStore": "broadsheet.consumer.leasing.store",
            "RecordStoreConformance": "broadsheet.consumer.leasing.conformance.suite",
            "RecordStoreSubject": "broadsheet.consumer.leasing.conformance.suite",
            "ShardCheckpointer": "broadsheet.consumer.leasing.facades.vmware_go",
            "ShardClaimedError": "broadsheet.consumer.errors",
            "ShutdownError": "broadsheet.consumer.errors",
            "SourceShard": "broadsheet.consumer.leasing.worker.source",
            "SqlRecordStore": "broadsheet.consumer.leasing.stores.sql.store",
            "StoreThread": "broadsheet.consumer.leasing.blocking",
            "SyncCheckpointManager": "broadsheet.consumer.leasing.facades.eph",
            "SyncLeaseManager": "broadsheet.consumer.leasing.facades.kcl",
            "SyncRecordCheckpointStore": "broadsheet.consumer.leasing.facades.blocking_event_hubs",
            "SyncShardCheckpointer": "broadsheet.consumer.leasing.facades.vmware_go",
            "ThrottlingError": "broadsheet.consumer.errors",
            "VmwareGoLayout": "broadsheet.consumer.leasing.stores.dynamodb.vmware_go",
            "WallClockExpiry": "broadsheet.consumer.leasing.stores.dynamodb.vmware_go",
            "WorkerSettings": "broadsheet.consumer.leasing.worker.settings",
            "commit": "broadsheet.consumer.leasing.rules",
            "open_dynamodb_client": "broadsheet.consumer.leasing.stores.dynamodb.table",
            "open_store": "broadsheet.consumer.leasing.opening",
            "parse_store_address": "broadsheet.consumer.leasing.addresses",
            "prepare": "broadsheet.consumer.leasing.rules",
        },
    )
