"""Transactions a second through our etcd client, beside a bare channel that sends the same bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TypeAlias

import grpc.aio

from bench.report import alternate, emit_pair
from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.ops import Compare, CompareTarget, Put
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.task_group import TaskGroup

TXNS = 3_200
IN_FLIGHT = 32
VALUE_BYTES = 128
ROUNDS = 3

PutMany: TypeAlias = Callable[[int], Coroutine[object, object, None]]


def run(bench: str) -> None:
    """Measure and print `etcd_txn_per_s`: one comparison and one put of 128 bytes, 32 in flight."""
    with EmbeddedEtcdProcess() as server:
        medians = alternate(
            lambda: asyncio.run(_ours(server.endpoint)),
            lambda: asyncio.run(_bare(server.endpoint)),
            ROUNDS,
        )
    emit_pair(
        bench,
        "etcd_txn_per_s",
        medians,
        "1/s",
        limit="bare grpc.aio channel, requests serialized beforehand",
        in_flight=IN_FLIGHT,
        value_bytes=VALUE_BYTES,
    )


async def _ours(endpoint: str) -> float:
    async with EtcdClient(EtcdConfig(endpoints=(endpoint,))) as client:

        async def put_many(worker: int) -> None:
            for number in range(TXNS // IN_FLIGHT):
                key = b"/bench/ours/%d/%d" % (worker, number % 16)
                await client.txn(
                    (Compare(key, CompareTarget.LEASE, 0),), (Put(key, b"v" * VALUE_BYTES),)
                )

        return await _rate(put_many)


async def _bare(endpoint: str) -> float:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/etcdserverpb.KV/Txn"
        )
        requests = [_request(worker) for worker in range(IN_FLIGHT)]

        async def put_many(worker: int) -> None:
            for _ in range(TXNS // IN_FLIGHT):
                await call(requests[worker])

        return await _rate(put_many)


def _request(worker: int) -> bytes:
    key = b"/bench/bare/%d" % worker
    compare = rpc_pb2.Compare(target=rpc_pb2.Compare.LEASE, key=key, lease=0)
    put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key, value=b"v" * VALUE_BYTES))
    return rpc_pb2.TxnRequest(compare=[compare], success=[put]).SerializeToString()


async def _rate(put_many: PutMany) -> float:
    began = time.perf_counter()
    async with TaskGroup() as group:
        for worker in range(IN_FLIGHT):
            group.start_soon(put_many(worker), name=f"worker-{worker}")
    return TXNS / (time.perf_counter() - began)
