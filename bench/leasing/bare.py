"""The clients below the stores, writing as many records of the same size as bare as they can.

Each is opened on the place where a store is, with the records that are in it, and answers a function that writes each
of them once, some at a time, and returns the seconds. Every write changes its record, as a renewal does: a database may
write nothing for an UPDATE that changes nothing (SQLite does not even touch its log).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, TypeAlias

import grpc.aio
import sqlalchemy as sa

from bench.leasing.places import Place, dynamodb_client
from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.runtime.task_group import TaskGroup

Write: TypeAlias = Callable[[str], Awaitable[object]]
WriteAll: TypeAlias = Callable[[int], Awaitable[float]]
"""(calls at a time) -> seconds."""

THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)
"""Of asyncio's pool, in which stores with blocking clients work."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The records, and their later values, in turn."""

    versions: tuple[Mapping[str, str], Mapping[str, str]]
    """By key; every text of the one differs from that of the other."""

    def __post_init__(self) -> None:
        first, second = self.versions
        assert all(first[key] != second[key] for key in first), "a write must change something"

    @property
    def keys(self) -> list[str]:
        """Those of the records."""
        return list(self.versions[0])

    def in_turn(self) -> Iterator[Mapping[str, str]]:
        """Return the version to write in each round: never what is there already."""
        return cycle((self.versions[1], self.versions[0]))


@dataclass(frozen=True, slots=True)
class BareClient:
    """Of one backend."""

    write_all: WriteAll
    what: str
    """What it calls a write."""


async def each_at_once(keys: Sequence[str], at_once: int, call: Write) -> float:
    """Call for each key, `at_once` at a time; return the seconds."""
    queue = iter(keys)

    async def call_some() -> None:
        for key in queue:
            await call(key)

    began = time.perf_counter()
    async with TaskGroup() as group:
        for number in range(at_once):
            group.start_soon(call_some(), name=f"caller {number}")
    return time.perf_counter() - began


@asynccontextmanager
async def _etcd(place: Place, texts: Texts) -> AsyncIterator[BareClient]:
    """A channel, with requests serialized beforehand: a comparison and a put."""
    rounds = cycle(
        [
            {key: _etcd_request(key, text) for key, text in version.items()}
            for version in texts.versions
        ]
    )
    async with grpc.aio.insecure_channel(place.address) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/etcdserverpb.KV/Txn"
        )

        async def write_all(at_once: int) -> float:
            requests = next(rounds)

            async def write(key: str) -> None:
                await call(requests[key])

            return await each_at_once(texts.keys, at_once, write)

        yield BareClient(write_all, "transactions of one put on a bare grpc.aio channel")


def _etcd_request(key: str, text: str) -> bytes:
    name = f"/bare/{key}".encode()
    compare = rpc_pb2.Compare(target=rpc_pb2.Compare.LEASE, key=name, lease=0)
    put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=name, value=text.encode()))
    return rpc_pb2.TxnRequest(compare=[compare], success=[put]).SerializeToString()


@asynccontextmanager
async def _sql(place: Place, texts: Texts) -> AsyncIterator[BareClient]:
    """The driver, each UPDATE committed. SQLite has one writer: there one connection is quickest."""
    engine = sa.create_engine(place.address, poolclass=sa.NullPool)
    is_sqlite = engine.dialect.name == "sqlite"
    table = sa.Table(
        "bare",
        sa.MetaData(),
        sa.Column("lease_key", sa.String(255), primary_key=True),
        sa.Column("record", sa.Text),
    )
    rows = [{"lease_key": key, "record": text} for key, text in texts.versions[0].items()]
    with engine.begin() as connection:
        table.create(connection, checkfirst=True)
        connection.execute(sa.delete(table))
        connection.execute(sa.insert(table), rows)
    mark = "?" if is_sqlite else "%s"
    update = f"UPDATE bare SET record = {mark} WHERE lease_key = {mark}"  # noqa: S608 - both are ours
    rounds = texts.in_turn()

    async def write_all(at_once: int) -> float:
        text_by_key = next(rounds)

        def write_some(keys: Sequence[str]) -> float:
            with closing(engine.raw_connection()) as connection:
                cursor = connection.cursor()
                if is_sqlite:
                    cursor.execute("PRAGMA synchronous = FULL")
                began = time.perf_counter()
                for key in keys:
                    cursor.execute(update, (text_by_key[key], key))
                    connection.commit()
                return time.perf_counter() - began

        threads = 1 if is_sqlite else min(at_once, THREADS_MAX)
        return await _on_threads(texts.keys, threads, write_some)

    yield BareClient(write_all, "UPDATEs of the driver, each committed")
    engine.dispose()


@asynccontextmanager
async def _dynamodb(place: Place, texts: Texts) -> AsyncIterator[BareClient]:
    client = dynamodb_client(place.address)
    rounds = texts.in_turn()

    async def write_all(at_once: int) -> float:
        text_by_key = next(rounds)

        def write_some(keys: Sequence[str]) -> float:
            began = time.perf_counter()
            for key in keys:
                client.update_item(
                    TableName=place.space,
                    Key={"key": {"S": f"bare-{key}"}},
                    UpdateExpression="SET #r = :r",
                    ExpressionAttributeNames={"#r": "record"},
                    ExpressionAttributeValues={":r": {"S": text_by_key[key]}},
                )
            return time.perf_counter() - began

        return await _on_threads(texts.keys, min(at_once, THREADS_MAX), write_some)

    yield BareClient(write_all, "update_item of boto3")
    client.close()


@asynccontextmanager
async def _azure_blob(place: Place, texts: Texts) -> AsyncIterator[BareClient]:
    from azure.core import MatchConditions
    from azure.storage.blob.aio import ContainerClient

    etags: dict[str, str] = {}
    rounds = texts.in_turn()
    async with ContainerClient.from_connection_string(place.address, f"{place.space}-bare") as bare:
        await bare.create_container()

        async def write_all(at_once: int) -> float:
            text_by_key = next(rounds)

            async def write(key: str) -> None:
                condition: dict[str, Any] = {}  # Any: arguments of different types.
                if key in etags:
                    condition = {
                        "etag": etags[key],
                        "match_condition": MatchConditions.IfNotModified,
                    }
                answer = await bare.get_blob_client(key).upload_blob(
                    text_by_key[key].encode(), overwrite=True, **condition
                )
                etags[key] = str(answer["etag"])

            return await each_at_once(texts.keys, at_once, write)

        # The first round, which is not counted, makes the blobs.
        yield BareClient(write_all, "upload_blob with If-Match")
        await bare.delete_container()


async def _on_threads(
    keys: Sequence[str], threads: int, write_some: Callable[[Sequence[str]], float]
) -> float:
    """Let threads write their parts; return the seconds of the slowest, without the opening of connections."""
    with ThreadPoolExecutor(threads) as pool:
        loop = asyncio.get_running_loop()
        parts = [keys[number::threads] for number in range(threads)]
        return max(
            await asyncio.gather(*[loop.run_in_executor(pool, write_some, each) for each in parts])
        )


BARE: Final[dict[str, Callable[[Place, Texts], AbstractAsyncContextManager[BareClient]]]] = {
    "etcd": _etcd,
    "sqlite": _sql,
    "postgresql": _sql,
    "dynamodb": _dynamodb,
    "azure_blob": _azure_blob,
}
"""By backend: open its client where a store is, for these texts by key."""
