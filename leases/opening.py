"""Open the store that an address names.

The clients of AWS, Azure and databases are extras, so they are imported only when needed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.leases.addresses import NATIVE, StoreAddress
from broadsheet.leases.errors import StoreNotFoundError
from broadsheet.leases.store import RecordStore
from broadsheet.leases.stores.dynamodb.layout import Layout
from broadsheet.leases.stores.etcd.store import EtcdRecordStore
from broadsheet.runtime.errors import ValidationError, needs_extra

if TYPE_CHECKING:
    import sqlalchemy as sa

CONNECTION_STRING_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
"""Environment variable of the connection string that Azure's own tools read; an address may name another by
`connection_env`.
"""
ETCD_VARIABLE: Final = "ETCD_ADDRESS"
"""Comma-separated endpoints, as with `shardctl serve`."""


def open_store(
    address: StoreAddress, *, environment: Mapping[str, str] | None = None
) -> AbstractAsyncContextManager[RecordStore]:
    """Open a store; only the empty file of a SQLite database is created.

    Args:
        address: Of the store.
        environment: Variables with secrets; None: those of the process.

    Raises:
        ValidationError: on entering: an option is wrong, a variable is missing, or the extra is not installed.
    """
    open_kind = {
        "etcd": _etcd_store,
        "sql": _sql_store,
        "dynamodb": _dynamodb_store,
        "azblob": _azure_store,
    }[address.kind]
    return open_kind(address, os.environ if environment is None else environment)


def missing_file(address: StoreAddress) -> Path | None:
    """Return the path of a SQLite database if its file is missing, because opening it would create it."""
    if address.kind != "sql":
        return None
    url = _database_url(address)
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    path = Path(url.database)
    return None if path.exists() else path


@asynccontextmanager
async def existing_store(address: StoreAddress) -> AsyncIterator[RecordStore]:
    """Open the store of an address; it must exist.

    Raises:
        StoreNotFoundError: there is no such store.
    """
    path = missing_file(address)
    if path is not None:
        raise StoreNotFoundError("store", f"{address.text}: there is no file {path}")
    async with open_store(address) as store:
        if not await store.exists():
            raise StoreNotFoundError("store", f"{address.text}: there is no such store")
        yield store


@asynccontextmanager
async def _etcd_store(
    address: StoreAddress, environment: Mapping[str, str]
) -> AsyncIterator[RecordStore]:
    options = address.options
    endpoints = options.get("endpoints") or environment.get(ETCD_VARIABLE) or "127.0.0.1:2379"
    config = EtcdConfig(
        endpoints=tuple(endpoints.split(",")),
        ca_file=_file(address, "ca_file"),
        cert_file=_file(address, "cert_file"),
        key_file=_file(address, "key_file"),
        username=environment.get("ETCD_USER") or None,
        password=environment.get("ETCD_PASSWORD") or None,
    )
    async with EtcdClient(config) as etcd, EtcdRecordStore(etcd, address.place) as store:
        yield store


@asynccontextmanager
async def _sql_store(
    address: StoreAddress, environment: Mapping[str, str]
) -> AsyncIterator[RecordStore]:
    del environment
    with _needing("sql", "sqlalchemy"):
        import sqlalchemy as sa

        from broadsheet.leases.stores.sql.records import TABLE_NAME
        from broadsheet.leases.stores.sql.store import SqlRecordStore
    with _needing("postgresql", "psycopg"):
        engine = sa.create_engine(_database_url(address))
    try:
        yield SqlRecordStore(engine, table_name=address.options.get("table", TABLE_NAME))
    finally:
        engine.dispose()


@asynccontextmanager
async def _dynamodb_store(
    address: StoreAddress, environment: Mapping[str, str]
) -> AsyncIterator[RecordStore]:
    del environment  # boto3 reads these variables itself, and looks in more places.
    with _needing("aws", "boto3"):
        from botocore.exceptions import BotoCoreError

        from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout
        from broadsheet.leases.stores.dynamodb.layout import NativeLayout
        from broadsheet.leases.stores.dynamodb.store import DynamoRecordStore
        from broadsheet.leases.stores.dynamodb.table import open_dynamodb_client
        from broadsheet.leases.stores.dynamodb.vmware_go import VmwareGoLayout
    layouts: dict[str, Callable[[], Layout]] = {
        NATIVE: NativeLayout,
        "kcl-java": KclJavaLayout,
        "vmware-go": lambda: VmwareGoLayout(lease_seconds=_seconds(address, "lease_seconds")),
    }
    names = {"region": "region_name", "endpoint": "endpoint_url"}
    settings = {names[name]: value for name, value in address.options.items() if name in names}
    try:
        client = open_dynamodb_client(**settings)
    except (BotoCoreError, ValueError) as error:
        cause = address.url.hidden_in(str(error))
        raise ValidationError("store", f"{address.text}: {cause}") from None
    try:
        yield DynamoRecordStore(client, address.place, layout=layouts[address.layout]())
    finally:
        client.close()


@asynccontextmanager
async def _azure_store(
    address: StoreAddress, environment: Mapping[str, str]
) -> AsyncIterator[RecordStore]:
    with _needing("azure", "azure-storage-blob and aiohttp"):
        import aiohttp  # noqa: F401  # Azure's client imports it later, without saying why.
        from azure.storage.blob.aio import ContainerClient

        from broadsheet.leases.stores.azure.eph import EphRecordStore
        from broadsheet.leases.stores.azure.event_hubs import EventHubsRecordStore
        from broadsheet.leases.stores.azure.native import BlobRecordStore
    variable = address.options.get("connection_env", CONNECTION_STRING_VARIABLE)
    options = address.options
    try:
        container = ContainerClient.from_connection_string(
            _variable(environment, variable), address.place
        )
    except ValueError as error:
        raise ValidationError(variable, f"is not a connection string: {error}") from error
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(container)
        if address.layout == "eph":
            yield await stack.enter_async_context(
                EphRecordStore(
                    container,
                    consumer_group=options.get("group", "$default"),
                    prefix=options.get("prefix", ""),
                )
            )
        elif address.layout == "eventhubs":
            yield EventHubsRecordStore(container, scope=options.get("scope"))
        else:
            yield BlobRecordStore(container, prefix=options.get("prefix", ""))


def _database_url(address: StoreAddress) -> sa.URL:
    """Return the database URL with the driver that our tests use.

    Raises:
        ValidationError: it is none, or of a database that holds no leases.
    """
    import sqlalchemy as sa

    try:
        url = sa.make_url(address.place)
    except sa.exc.ArgumentError as error:
        cause = address.url.hidden_in(str(error))
        raise ValidationError(
            "store", f"sql: expected sql:postgresql://host/database or sql:sqlite:///file: {cause}"
        ) from None
    if url.get_backend_name() not in ("postgresql", "sqlite"):
        raise ValidationError(
            "store", f"sql: expected postgresql or sqlite, got {url.get_backend_name()!r:.80}"
        )
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def _file(address: StoreAddress, name: str) -> Path | None:
    path = address.options.get(name)
    if path is None:
        return None
    if not Path(path).is_file():
        raise ValidationError(f"store.{name}", f"there is no file {path}")
    return Path(path)


def _seconds(address: StoreAddress, name: str) -> float | None:
    text = address.options.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValidationError(
            f"store.{name}", f"expected a number of seconds above 0, got {text!r:.80}"
        )
    return seconds


def _variable(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise ValidationError(
            name, "expected the connection string of the storage account in this variable"
        )
    return value


@contextmanager
def _needing(extra: str, packages: str) -> Iterator[None]:
    """Turn an ImportError into an error that names the extra to install."""
    try:
        yield
    except ImportError as error:
        raise ValidationError("store", f"{needs_extra(extra, packages)} ({error})") from error
