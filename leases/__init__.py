"""Leases and checkpoints: records, their stores, managers in three styles, and workers that share a stream.

Records in DynamoDB need the extra `[aws]`. Records in Azure Blob Storage, and checkpoints for Azure's own event
processor, need `[azure]`.
"""

from typing import TYPE_CHECKING

from broadsheet.runtime.door import public_names

if TYPE_CHECKING:
    from broadsheet.leases.addresses import parse_store_address as parse_store_address
    from broadsheet.leases.blocking import StoreThread as StoreThread
    from broadsheet.leases.errors import (
        BlockedOnParentError as BlockedOnParentError,
        DependencyError as DependencyError,
        InvalidStateError as InvalidStateError,
        LeaseNotAcquiredError as LeaseNotAcquiredError,
        LeasingError as LeasingError,
        ShardClaimedError as ShardClaimedError,
        ShutdownError as ShutdownError,
        ThrottlingError as ThrottlingError,
    )
    from broadsheet.leases.expiry import LeaseObserver as LeaseObserver
    from broadsheet.leases.facades.blocking_event_hubs import (
        SyncRecordCheckpointStore as SyncRecordCheckpointStore,
    )
    from broadsheet.leases.facades.eph import (
        CheckpointManager as CheckpointManager,
        SyncCheckpointManager as SyncCheckpointManager,
    )
    from broadsheet.leases.facades.event_hubs import RecordCheckpointStore as RecordCheckpointStore
    from broadsheet.leases.facades.kcl import (
        LeaseManager as LeaseManager,
        SyncLeaseManager as SyncLeaseManager,
    )
    from broadsheet.leases.facades.vmware_go import (
        ShardCheckpointer as ShardCheckpointer,
        SyncShardCheckpointer as SyncShardCheckpointer,
    )
    from broadsheet.leases.live_page import lease_route as lease_route
    from broadsheet.leases.metrics import LeaseMetrics as LeaseMetrics
    from broadsheet.leases.opening import open_store as open_store
    from broadsheet.leases.position import Position as Position
    from broadsheet.leases.record import (
        LeaseRecord as LeaseRecord,
        RecordConflictError as RecordConflictError,
    )
    from broadsheet.leases.record_processor.application import (
        RecordProcessorApplication as RecordProcessorApplication,
    )
    from broadsheet.leases.record_processor.kclpy import KclpyProcessor as KclpyProcessor
    from broadsheet.leases.record_processor.processor import (
        AsyncRecordProcessor as AsyncRecordProcessor,
        RecordProcessor as RecordProcessor,
    )
    from broadsheet.leases.rules import commit as commit, prepare as prepare
    from broadsheet.leases.store import RecordStore as RecordStore
    from broadsheet.leases.stores.azure.eph import EphRecordStore as EphRecordStore
    from broadsheet.leases.stores.azure.event_hubs import (
        EventHubsRecordStore as EventHubsRecordStore,
    )
    from broadsheet.leases.stores.azure.native import BlobRecordStore as BlobRecordStore
    from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout as KclJavaLayout
    from broadsheet.leases.stores.dynamodb.layout import NativeLayout as NativeLayout
    from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore as DynamoRecordStore
    from broadsheet.leases.stores.dynamodb.table import open_dynamodb_client as open_dynamodb_client
    from broadsheet.leases.stores.dynamodb.vmware_go import (
        VmwareGoLayout as VmwareGoLayout,
        WallClockExpiry as WallClockExpiry,
    )
    from broadsheet.leases.stores.etcd.store import EtcdRecordStore as EtcdRecordStore
    from broadsheet.leases.stores.sql.store import SqlRecordStore as SqlRecordStore
    from broadsheet.leases.worker.kinesis_source import KinesisRecordSource as KinesisRecordSource
    from broadsheet.leases.worker.settings import (
        Balancing as Balancing,
        WorkerSettings as WorkerSettings,
    )
    from broadsheet.leases.worker.source import (
        RecordBatch as RecordBatch,
        RecordSource as RecordSource,
        SourceShard as SourceShard,
    )
    from broadsheet.leases.worker.worker import LeaseWorker as LeaseWorker

if not TYPE_CHECKING:  # A type checker that saw `__getattr__` would accept any name.
    __getattr__, __dir__ = public_names(__name__)
