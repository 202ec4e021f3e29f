"""Locations of a benchmark's records, as command-line arguments, and the stores over them.

What a backend needs is imported when it is opened: a process starts sooner without that of the others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from broadsheet.leases.store import RecordStore

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

CALLS_AT_ONCE: Final = 20
"""As many as a worker renews at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store of its own on a server."""

    backend: str
    """One of `BACKENDS`."""
    address: str
    """An endpoint, a URL of SQLAlchemy, or a connection string."""
    space: str
    """Names the root, table or container: lower-case letters, digits and hyphens."""
    lease_seconds: float = 10.0
    """How long a lease lives without a sign of its holder."""


Opener: TypeAlias = Callable[[Place], AbstractAsyncContextManager[RecordStore]]


def opened(place: Place) -> AbstractAsyncContextManager[RecordStore]:
    """Open the store of one process."""
    return BACKENDS[place.backend](place)


def lease_keys(leases: int) -> list[str]:
    """Return the keys of so many leases."""
    return [f"shard-{number:06}" for number in range(leases)]


def dynamodb_client(address: str) -> DynamoDBClient:
    """Open a client of a moto server, which takes any key."""
    from broadsheet.leases.stores.dynamodb.table import open_dynamodb_client

    return open_dynamodb_client(
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - moto takes any
    )


@asynccontextmanager
async def _etcd(place: Place) -> AsyncIterator[RecordStore]:
    from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
    from broadsheet.leases.stores.etcd.store import EtcdRecordStore

    async with (
        EtcdClient(EtcdConfig(endpoints=(place.address,))) as client,
        EtcdRecordStore(client, f"/{place.space}", lease_seconds=place.lease_seconds) as store,
    ):
        yield store


@asynccontextmanager
async def _sql(place: Place) -> AsyncIterator[RecordStore]:
    import sqlalchemy as sa

    from broadsheet.leases.stores.sql.store import SqlRecordStore

    engine = sa.create_engine(place.address)
    try:
        yield SqlRecordStore(engine, table_name=place.space)
    finally:
        engine.dispose()


@asynccontextmanager
async def _dynamodb(place: Place) -> AsyncIterator[RecordStore]:
    from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore

    client = dynamodb_client(place.address)
    try:
        yield DynamoRecordStore(client, place.space)
    finally:
        client.close()


@asynccontextmanager
async def _azure_blob(place: Place) -> AsyncIterator[RecordStore]:
    from azure.storage.blob.aio import ContainerClient

    from broadsheet.leases.stores.azure.native import BlobRecordStore

    async with ContainerClient.from_connection_string(place.address, place.space) as container:
        yield BlobRecordStore(container)


BACKENDS: Final[dict[str, Opener]] = {
    "etcd": _etcd,
    "sqlite": _sql,
    "postgresql": _sql,
    "dynamodb": _dynamodb,
    "azure_blob": _azure_blob,
}
