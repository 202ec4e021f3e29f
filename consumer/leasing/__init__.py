"""Leases and checkpoints: records, the stores that keep them, managers in three styles, workers that share a stream.

Records in DynamoDB need the extra `[aws]`. Records in Azure Blob Storage, and checkpoints for Azure's own event
processor, need `[azure]`.
"""

from typing import TYPE_CHECKING

from allocator.runtime.door import lazy_names

if TYPE_CHECKING:
    from consumer.errors import (
        BlockedOnParentError,
        DependencyError,
        InvalidStateError,
        LeaseNotAcquiredError,
        LeasingError,
        ShardClaimedError,
        ShutdownError,
        ThrottlingError,
    )
    from consumer.leasing.addresses import parse_store_address
    from consumer.leasing.blocking import StoreThread
    from consumer.leasing.conformance.suite import RecordStoreConformance, RecordStoreSubject
    from consumer.leasing.expiry import LeaseObserver
    from consumer.leasing.facades.blocking_event_hubs import SyncRecordCheckpointStore
    from consumer.leasing.facades.eph import CheckpointManager, SyncCheckpointManager
    from consumer.leasing.facades.event_hubs import RecordCheckpointStore
    from consumer.leasing.facades.kcl import LeaseManager, SyncLeaseManager
    from consumer.leasing.facades.vmware_go import ShardCheckpointer, SyncShardCheckpointer
    from consumer.leasing.metrics import LeaseMetrics
    from consumer.leasing.opening import open_store
    from consumer.leasing.position import Position
    from consumer.leasing.record import LeaseRecord, RecordConflictError
    from consumer.leasing.record_processor.application import RecordProcessorApplication
    from consumer.leasing.record_processor.kclpy import KclpyProcessor
    from consumer.leasing.record_processor.processor import AsyncRecordProcessor, RecordProcessor
    from consumer.leasing.rules import commit, prepare
    from consumer.leasing.store import RecordStore
    from consumer.leasing.stores.azure.eph import EphRecordStore
    from consumer.leasing.stores.azure.event_hubs import EventHubsRecordStore
    from consumer.leasing.stores.azure.native import BlobRecordStore
    from consumer.leasing.stores.dynamodb.kcl_java import KclJavaLayout
    from consumer.leasing.stores.dynamodb.layout import NativeLayout
    from consumer.leasing.stores.dynamodb.store import DynamoRecordStore
    from consumer.leasing.stores.dynamodb.table import open_dynamodb_client
    from consumer.leasing.stores.dynamodb.vmware_go import VmwareGoLayout, WallClockExpiry
    from consumer.leasing.stores.etcd.store import EtcdRecordStore
    from consumer.leasing.stores.sql.store import SqlRecordStore
    from consumer.leasing.worker.settings import Balancing, WorkerSettings
    from consumer.leasing.worker.source import RecordBatch, RecordSource, SourceShard
    from consumer.leasing.worker.source_conformance import (
        RecordSourceConformance,
        RecordSourceSubject,
    )
    from consumer.leasing.worker.worker import LeaseWorker

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

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would believe in any name.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AsyncRecordProcessor": "consumer.leasing.record_processor.processor",
            "Balancing": "consumer.leasing.worker.settings",
            "BlobRecordStore": "consumer.leasing.stores.azure.native",
            "BlockedOnParentError": "consumer.errors",
            "CheckpointManager": "consumer.leasing.facades.eph",
            "DependencyError": "consumer.errors",
            "DynamoRecordStore": "consumer.leasing.stores.dynamodb.store",
            "EphRecordStore": "consumer.leasing.stores.azure.eph",
            "EtcdRecordStore": "consumer.leasing.stores.etcd.store",
            "EventHubsRecordStore": "consumer.leasing.stores.azure.event_hubs",
            "InvalidStateError": "consumer.errors",
            "KclJavaLayout": "consumer.leasing.stores.dynamodb.kcl_java",
            "KclpyProcessor": "consumer.leasing.record_processor.kclpy",
            "LeaseManager": "consumer.leasing.facades.kcl",
            "LeaseMetrics": "consumer.leasing.metrics",
            "LeaseNotAcquiredError": "consumer.errors",
            "LeaseObserver": "consumer.leasing.expiry",
            "LeaseRecord": "consumer.leasing.record",
            "LeaseWorker": "consumer.leasing.worker.worker",
            "LeasingError": "consumer.errors",
            "NativeLayout": "consumer.leasing.stores.dynamodb.layout",
            "Position": "consumer.leasing.position",
            "RecordBatch": "consumer.leasing.worker.source",
            "RecordCheckpointStore": "consumer.leasing.facades.event_hubs",
            "RecordConflictError": "consumer.leasing.record",
            "RecordProcessor": "consumer.leasing.record_processor.processor",
            "RecordProcessorApplication": "consumer.leasing.record_processor.application",
            "RecordSource": "consumer.leasing.worker.source",
            "RecordSourceConformance": "consumer.leasing.worker.source_conformance",
            "RecordSourceSubject": "consumer.leasing.worker.source_conformance",
            "RecordStore": "consumer.leasing.store",
            "RecordStoreConformance": "consumer.leasing.conformance.suite",
            "RecordStoreSubject": "consumer.leasing.conformance.suite",
            "ShardCheckpointer": "consumer.leasing.facades.vmware_go",
            "ShardClaimedError": "consumer.errors",
            "ShutdownError": "consumer.errors",
            "SourceShard": "consumer.leasing.worker.source",
            "SqlRecordStore": "consumer.leasing.stores.sql.store",
            "StoreThread": "consumer.leasing.blocking",
            "SyncCheckpointManager": "consumer.leasing.facades.eph",
            "SyncLeaseManager": "consumer.leasing.facades.kcl",
            "SyncRecordCheckpointStore": "consumer.leasing.facades.blocking_event_hubs",
            "SyncShardCheckpointer": "consumer.leasing.facades.vmware_go",
            "ThrottlingError": "consumer.errors",
            "VmwareGoLayout": "consumer.leasing.stores.dynamodb.vmware_go",
            "WallClockExpiry": "consumer.leasing.stores.dynamodb.vmware_go",
            "WorkerSettings": "consumer.leasing.worker.settings",
            "commit": "consumer.leasing.rules",
            "open_dynamodb_client": "consumer.leasing.stores.dynamodb.table",
            "open_store": "consumer.leasing.opening",
            "parse_store_address": "consumer.leasing.addresses",
            "prepare": "consumer.leasing.rules",
        },
    )
