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
    from consumer.leasing.azure_blob.eph import EphRecordStore
    from consumer.leasing.azure_blob.event_hubs import EventHubsRecordStore
    from consumer.leasing.azure_blob.native import BlobRecordStore
    from consumer.leasing.checkpoint_manager import CheckpointManager
    from consumer.leasing.conformance.subject import RecordStoreSubject
    from consumer.leasing.conformance.suite import RecordStoreConformance
    from consumer.leasing.core.conflict import RecordConflictError
    from consumer.leasing.core.position import Position
    from consumer.leasing.core.record import LeaseRecord
    from consumer.leasing.core.rules import commit, prepare
    from consumer.leasing.dynamodb.client import open_dynamodb_client
    from consumer.leasing.dynamodb.core.kcl_java import KclJavaLayout
    from consumer.leasing.dynamodb.core.native import NativeLayout
    from consumer.leasing.dynamodb.core.vmware_go import VmwareGoLayout
    from consumer.leasing.dynamodb.store import DynamoRecordStore
    from consumer.leasing.dynamodb.wall_clock import WallClockExpiry
    from consumer.leasing.etcd.store import EtcdRecordStore
    from consumer.leasing.event_hubs import RecordCheckpointStore
    from consumer.leasing.manager import LeaseManager
    from consumer.leasing.metrics import LeaseMetrics
    from consumer.leasing.observer import LeaseObserver
    from consumer.leasing.opening import open_store
    from consumer.leasing.record_processor.application import RecordProcessorApplication
    from consumer.leasing.record_processor.kclpy import KclpyProcessor
    from consumer.leasing.record_processor.processor import AsyncRecordProcessor, RecordProcessor
    from consumer.leasing.shard_checkpointer import ShardCheckpointer
    from consumer.leasing.sql.store import SqlRecordStore
    from consumer.leasing.store import RecordStore
    from consumer.leasing.store_thread import StoreThread
    from consumer.leasing.sync_checkpoint_manager import SyncCheckpointManager
    from consumer.leasing.sync_event_hubs import SyncRecordCheckpointStore
    from consumer.leasing.sync_manager import SyncLeaseManager
    from consumer.leasing.sync_shard_checkpointer import SyncShardCheckpointer
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
            "BlobRecordStore": "consumer.leasing.azure_blob.native",
            "BlockedOnParentError": "consumer.errors",
            "CheckpointManager": "consumer.leasing.checkpoint_manager",
            "DependencyError": "consumer.errors",
            "DynamoRecordStore": "consumer.leasing.dynamodb.store",
            "EphRecordStore": "consumer.leasing.azure_blob.eph",
            "EtcdRecordStore": "consumer.leasing.etcd.store",
            "EventHubsRecordStore": "consumer.leasing.azure_blob.event_hubs",
            "InvalidStateError": "consumer.errors",
            "KclJavaLayout": "consumer.leasing.dynamodb.core.kcl_java",
            "KclpyProcessor": "consumer.leasing.record_processor.kclpy",
            "LeaseManager": "consumer.leasing.manager",
            "LeaseMetrics": "consumer.leasing.metrics",
            "LeaseNotAcquiredError": "consumer.errors",
            "LeaseObserver": "consumer.leasing.observer",
            "LeaseRecord": "consumer.leasing.core.record",
            "LeaseWorker": "consumer.leasing.worker.worker",
            "LeasingError": "consumer.errors",
            "NativeLayout": "consumer.leasing.dynamodb.core.native",
            "Position": "consumer.leasing.core.position",
            "RecordBatch": "consumer.leasing.worker.source",
            "RecordCheckpointStore": "consumer.leasing.event_hubs",
            "RecordConflictError": "consumer.leasing.core.conflict",
            "RecordProcessor": "consumer.leasing.record_processor.processor",
            "RecordProcessorApplication": "consumer.leasing.record_processor.application",
            "RecordSource": "consumer.leasing.worker.source",
            "RecordSourceConformance": "consumer.leasing.worker.source_conformance",
            "RecordSourceSubject": "consumer.leasing.worker.source_conformance",
            "RecordStore": "consumer.leasing.store",
            "RecordStoreConformance": "consumer.leasing.conformance.suite",
            "RecordStoreSubject": "consumer.leasing.conformance.subject",
            "ShardCheckpointer": "consumer.leasing.shard_checkpointer",
            "ShardClaimedError": "consumer.errors",
            "ShutdownError": "consumer.errors",
            "SourceShard": "consumer.leasing.worker.source",
            "SqlRecordStore": "consumer.leasing.sql.store",
            "StoreThread": "consumer.leasing.store_thread",
            "SyncCheckpointManager": "consumer.leasing.sync_checkpoint_manager",
            "SyncLeaseManager": "consumer.leasing.sync_manager",
            "SyncRecordCheckpointStore": "consumer.leasing.sync_event_hubs",
            "SyncShardCheckpointer": "consumer.leasing.sync_shard_checkpointer",
            "ThrottlingError": "consumer.errors",
            "VmwareGoLayout": "consumer.leasing.dynamodb.core.vmware_go",
            "WallClockExpiry": "consumer.leasing.dynamodb.wall_clock",
            "WorkerSettings": "consumer.leasing.worker.settings",
            "commit": "consumer.leasing.core.rules",
            "open_dynamodb_client": "consumer.leasing.dynamodb.client",
            "open_store": "consumer.leasing.opening",
            "parse_store_address": "consumer.leasing.addresses",
            "prepare": "consumer.leasing.core.rules",
        },
    )
