"""Calls between members over real channels: what the caller learns when they break off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import grpc
import pytest

from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import ItemId
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.resolver.resolver import Peers
from broadsheet.consumer.rpc.elastic_api import PeerParentCaller
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import NoAuth
from tests.support.eventually import eventually
from tests.support.key_space_values import KeySpaceValues, assignment, item, member, shard_spec


async def test_question_to_a_member_whose_channel_is_closed_fails_and_ends_no_task() -> None:
    """Channels to members that left, or were taken for dead, are closed with the calls on them. gRPC cancels those: who
    carries a division out would have ended without a word, for as long as its member leads.
    """
    server, peers, asked = grpc.aio.server(), Peers(), asyncio.Event()

    async def never(request: bytes, context: Any) -> bytes:
        del request, context
        asked.set()
        await asyncio.Event().wait()
        return b""

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(never)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "broadsheet.v1.ElasticService", {"LeaveJournal": handler}
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    asleep = member("a", f"http://127.0.0.1:{port}")
    mirror = KeySpaceValues(
        items={ItemId("shard-1"): item(shard_spec("shard-1"))},
        members={asleep.member_id: asleep},
        assignments=[assignment("shard-1", "a", 0)],
    )
    caller = PeerParentCaller(cast("KeySpace", mirror), peers, NoAuth())
    question = partial(caller.leave, "shard-1", "test/one", timeout_seconds=60.0)
    try:
        async with TaskGroup() as group:
            asking = group.start_soon(_refusal(question), name="ask")
            await eventually(asked.is_set)
            await peers.close()
            assert "shard-1 did not leave test/one: its member has left" in await asking

            cancelled = group.start_soon(_refusal(question), name="ask again")
            asked.clear()
            await eventually(asked.is_set)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
    finally:
        await peers.close()
        await server.stop(None)


async def _refusal(question: Callable[[], Awaitable[object]]) -> str:
    try:
        await question()
    except SplitDelayedError as error:
        return str(error)
    raise AssertionError("it was answered")
