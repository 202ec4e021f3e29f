"""Record stores over real servers, as two processes see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import sqlalchemy as sa

from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.ops import Put
from broadsheet.leases.stores.etcd.store import EtcdRecordStore
from broadsheet.leases.stores.sql.store import SqlRecordStore
from tests.support.azure_stores import AzureSubject
from tests.support.dynamodb_stores import DynamoSubject


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdSubject:
    """Below a root of its own."""

    etcd: EtcdClient
    root: str
    store: EtcdRecordStore
    rival: EtcdRecordStore
    history_steps: int = 150

    async def spoil(self, key: str) -> None:
        """Write no JSON."""
        await self.etcd.txn((), (Put(f"{self.root}/leases/{key}".encode(), b"{"),))


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSubject:
    """In a table of its own."""

    engine: sa.Engine
    store: SqlRecordStore
    rival: SqlRecordStore
    history_steps: int = 150

    async def spoil(self, key: str) -> None:
        """Write a record of another key."""
        table = self.store.records.table
        with self.engine.begin() as connection:
            connection.execute(
                sa.update(table).where(table.c.lease_key == key).values(record='{"key":"other"}')
            )


LeaseSubject = EtcdSubject | SqlSubject | AzureSubject | DynamoSubject


@asynccontextmanager
async def etcd_subject(endpoint: str, *, lease_seconds: float = 10.0) -> AsyncIterator[EtcdSubject]:
    """Two processes, each with its client and its etcd lease."""
    root = f"/leasing/{uuid4().hex}"
    async with AsyncExitStack() as stack:
        config = EtcdConfig(endpoints=(endpoint,))
        clients = [await stack.enter_async_context(EtcdClient(config)) for _ in range(2)]
        stores = [
            await stack.enter_async_context(
                EtcdRecordStore(client, root, lease_seconds=lease_seconds)
            )
            for client in clients
        ]
        yield EtcdSubject(etcd=clients[0], root=root, store=stores[0], rival=stores[1])


@asynccontextmanager
async def sql_subject(url: str, *, page_rows: int = 50) -> AsyncIterator[SqlSubject]:
    """Two processes, each with its engine."""
    engines = [sa.create_engine(url) for _ in range(2)]
    table_name = f"leases_{uuid4().hex}"
    stores = [
        SqlRecordStore(engine, table_name=table_name, page_rows=page_rows, lock_wait_seconds=10)
        for engine in engines
    ]
    try:
        yield SqlSubject(engine=engines[0], store=stores[0], rival=stores[1])
        await stores[0].delete_store()
    finally:
        for engine in engines:
            engine.dispose()
