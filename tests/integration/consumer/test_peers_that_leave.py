"""Calls to another member that leaves before it answers: real gRPC, over the channels that members keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest

from broadsheet.allocator.etcd.api import Etcd, RangeResult
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.registry.key_space import ShardDecoder, process_id_of
from broadsheet.consumer.resolver import resolver
from broadsheet.consumer.resolver.resolver import Peers
from broadsheet.consumer.rpc.elastic_api import PeerParentCaller
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import NoAuth
from broadsheet.wire.elastic_pb2 import PrepareForkRequest
from broadsheet.wire.journal_pb2 import ProcessSpec
from broadsheet.wire.shard_pb2 import ConsumerSpec
from tests.support.key_space_values import KEYS, etcd_header, member_id, shard_spec

PARENT = ItemId("shard-a")


class _Frozen:
    """A member that takes a request and never answers, as one that is stopped."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def prepare_fork(self, request: object, context: object) -> None:
        del request, context
        self.asked.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def _serving(frozen: _Frozen) -> AsyncIterator[str]:
    server = grpc.aio.server()
    # `Any`: grpc.aio's stubs do not know of handlers that are coroutines.
    handle: Any = frozen.prepare_fork
    methods: dict[str, Any] = {"PrepareFork": grpc.unary_unary_rpc_method_handler(handle)}
    service = grpc.method_handlers_generic_handler("broadsheet.v1.ElasticService", methods)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


def _cluster_with_primary_at(endpoint: str) -> KeySpace:
    primary = member_id("a")
    process = ProcessSpec(id=process_id_of(primary), endpoint=endpoint)
    values = {
        KEYS.item(PARENT): shard_spec(PARENT).SerializeToString(),
        KEYS.member(primary): ConsumerSpec(process_spec=process, shard_limit=1).SerializeToString(),
        KEYS.assignment(PARENT, primary, 0): b"",
    }
    key_space = KeySpace(cast("Etcd", None), KEYS, ShardDecoder(hot_standbys_max=3))
    kvs = tuple(
        KeyValue(key=key, value=value, create_revision=1, mod_revision=1, version=1, lease=0)
        for key, value in sorted(values.items())
    )
    key_space.replace(RangeResult(header=etcd_header(1), kvs=kvs))
    return key_space


async def test_member_that_leaves_before_it_answers_is_told_as_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The channel to it is closed, which gRPC tells as a cancellation. It would end the child's replica without a word:
    its split would stand still for ever.
    """
    monkeypatch.setattr(resolver, "CLOSE_SECONDS", 0.01)
    frozen, peers = _Frozen(), Peers()
    async with _serving(frozen) as endpoint:
        caller = PeerParentCaller(_cluster_with_primary_at(endpoint), peers, NoAuth())
        with pytest.raises(EndpointError, match="its process left during the call"):
            async with TaskGroup() as group:
                group.start_soon(
                    caller.prepare(PrepareForkRequest(parent=PARENT), timeout_seconds=60.0),
                    name="ask",
                )
                await frozen.asked.wait()
                peers.retain((), group)


async def test_caller_that_gives_up_is_cancelled_as_ever() -> None:
    """A cancellation of our own must not become an error that is tried again."""
    frozen, peers = _Frozen(), Peers()
    async with _serving(frozen) as endpoint:
        caller = PeerParentCaller(_cluster_with_primary_at(endpoint), peers, NoAuth())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0) as deadline, TaskGroup() as group:
                group.start_soon(
                    caller.prepare(PrepareForkRequest(parent=PARENT), timeout_seconds=60.0),
                    name="ask",
                )
                await frozen.asked.wait()
                deadline.reschedule(asyncio.get_running_loop().time())
                await asyncio.Event().wait()
        await peers.close()
