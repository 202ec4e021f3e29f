"""An application's own services see what their caller may, wherever they do the work."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from broadsheet.consumer.application import Resolver
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.shard_call import serving_shard
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import LEEWAY_SECONDS, Capability, Claims, KeyedAuth
from broadsheet.security.errors import ClaimsMissingError, UnauthenticatedError
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import Status
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.tally import Tally, total_of

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
KEYS = b64encode(b"a key of the members, 32 bytes or more").decode()
AUTH = KeyedAuth(KEYS)
TEAM_A = Claims(capability=Capability.ALL, selector=selector(label_set(("team", "a"))))
MINE, OTHERS = "shard-a", "shard-b"
SERVICE = "test.Elsewhere"

# `Any`: grpc.aio passes each handler its context, and its callables are generic in messages only.
Context = Any
Method = Callable[[bytes, Context], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class _Work:
    """A question that leaves its call."""

    shard_id: str
    claims: Claims
    answer: asyncio.Future[bytes]


class _Elsewhere(Tally):
    """Answers the question of `Tally`, each method at another place than in its call."""

    passes_claims = True
    """Whether the caller's claims go with the work; a program that forgets them must get nothing."""

    def __init__(self, directory: Path, group: TaskGroup) -> None:
        super().__init__(directory, output="")
        self._group = group
        self._for_task: asyncio.Queue[_Work] = asyncio.Queue()
        self._for_worker: asyncio.Queue[_Work] = asyncio.Queue()
        self._has_worker = False
        group.start_soon(self._work(self._for_task), name="background task")

    def register_services(self, server: grpc.aio.Server, resolver: Resolver) -> None:
        """Add the service."""
        self._resolver = resolver
        methods: dict[str, Method] = {
            "Call": self._in_call,
            "Task": self._in_background_task,
            "Thread": self._in_thread,
            "Queue": self._in_queue_of_first_caller,
            "Listing": self._listing,
        }
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def _in_call(self, request: bytes, context: Context) -> bytes:
        return await self._ask(request.decode(), claims_of(context))

    async def _in_background_task(self, request: bytes, context: Context) -> bytes:
        return await _handed_to(self._for_task, request, context)

    async def _in_thread(self, request: bytes, context: Context) -> bytes:
        loop, shard_id, claims = asyncio.get_running_loop(), request.decode(), claims_of(context)
        return await loop.run_in_executor(
            None,
            lambda: asyncio.run_coroutine_threadsafe(self._ask(shard_id, claims), loop).result(),
        )

    async def _in_queue_of_first_caller(self, request: bytes, context: Context) -> bytes:
        if not self._has_worker:
            # Its context, and what that holds, is that of the call which happens to come first.
            self._has_worker = True
            self._group.start_soon(self._work(self._for_worker), name="worker of the queue")
        return await _handed_to(self._for_worker, request, context)

    async def _listing(self, request: bytes, context: Context) -> bytes:
        specs = self._resolver.shards_with_source(request.decode(), claims=claims_of(context))
        return " ".join(spec.id for spec in specs).encode()

    async def _work(self, queue: asyncio.Queue[_Work]) -> None:
        while True:
            work = await queue.get()
            try:
                work.answer.set_result(await self._ask(work.shard_id, work.claims))
            except Exception as error:
                work.answer.set_exception(error)

    async def _ask(self, shard_id: str, claims: Claims) -> bytes:
        resolving = (
            self._resolver.resolve(shard_id, claims=claims, may_proxy=False)
            if self.passes_claims
            else self._resolver.resolve(shard_id, may_proxy=False)  # type: ignore[call-arg]
        )
        async with await resolving as resolution:
            if resolution.shard is None:
                return Status.Name(resolution.status).encode()
            return str(await resolution.call(total_of)).encode()


async def _handed_to(queue: asyncio.Queue[_Work], request: bytes, context: Context) -> bytes:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    await queue.put(_Work(request.decode(), claims_of(context), answer))
    return await answer


@dataclass(frozen=True, slots=True)
class _Member:
    """A member that runs the application, with a shard of each of two teams."""

    service: Service
    application: _Elsewhere
    channel: grpc.aio.Channel

    async def ask(self, method: str, text: str, claims: Claims) -> str:
        """Call a method of the application with a token for `claims`."""
        call: Any = self.channel.unary_unary(f"/{SERVICE}/{method}")
        answer: bytes = await call(text.encode(), metadata=AUTH.metadata(claims))
        return answer.decode()


@pytest.fixture
async def running(cluster: Cluster) -> Callable[[], Any]:
    """Return what starts the member: its tasks must begin and end in the test's own task."""

    @asynccontextmanager
    async def start() -> AsyncIterator[_Member]:
        async with TaskGroup() as group:
            application = _Elsewhere(cluster.directory, group)
            async with (
                cluster.member("a", application=application, auth_keys=KEYS) as service,
                client_of(service, AUTH) as client,
                grpc.aio.insecure_channel(service.address.removeprefix("http://")) as channel,
            ):
                await client.apply(
                    upserts(shard(MINE, SOURCE, team="a"), shard(OTHERS, SOURCE, team="b"))
                )
                await wait_for_primaries(client, MINE, OTHERS)
                yield _Member(service, application, channel)
            group.stop()

    return start


@pytest.mark.parametrize("method", ["Call", "Task", "Thread", "Queue"])
async def test_claims_hold_where_a_call_hands_its_work_to(
    running: Callable[[], Any], method: str
) -> None:
    """Work may go on in a task of the application's, in a pool of threads, or in a queue whose worker began in the call
    of someone who may see everything. The caller may see one shard there, too; and a program that does not pass the
    claims on is refused, because a default would be everything, or what another caller may.
    """
    async with running() as member:
        # The first caller, who may see all: what it starts must not lend its rights to the next.
        assert await member.ask(method, OTHERS, Claims.process()) == "0"

        member.application.passes_claims = False
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await member.ask(method, OTHERS, TEAM_A)
        assert caught.value.code() is grpc.StatusCode.INTERNAL

        member.application.passes_claims = True
        assert await member.ask(method, OTHERS, TEAM_A) == "SHARD_NOT_FOUND"
        assert await member.ask(method, MINE, TEAM_A) == "0"


async def test_shards_by_source_are_those_that_the_caller_may_see(
    running: Callable[[], Any],
) -> None:
    """Specs tell names and labels: who may see one team's shards is not told of another's because both read one
    journal.
    """
    async with running() as member:
        assert await member.ask("Listing", SOURCE, TEAM_A) == MINE
        assert await member.ask("Listing", SOURCE, Claims.process()) == f"{MINE} {OTHERS}"


async def test_claims_end_with_their_token_in_work_that_has_left_its_call(
    running: Callable[[], Any], journals: JournalClient
) -> None:
    """A call ends when its token expires; work that was handed on goes on. It gets no shard any more, neither when it
    asks too late, nor when the token expires while it waits for what it wants read.
    """
    async with running() as member:
        resolver = member.service.resolver
        now = datetime.now(UTC)
        late = replace(TEAM_A, expires_at=now - timedelta(seconds=LEEWAY_SECONDS + 1))
        with pytest.raises(UnauthenticatedError, match="expired"):
            await resolver.resolve(MINE, claims=late, may_proxy=False)
        with pytest.raises(UnauthenticatedError, match="expired"):
            resolver.shards_with_source(SOURCE, claims=late)

        producer = Producer(journals)
        end = await producer.publish(SOURCE, ["k"])
        soon_late = replace(TEAM_A, expires_at=now - timedelta(seconds=LEEWAY_SECONDS - 0.5))
        async with TaskGroup() as group:
            waiting = group.start_soon(
                _refusal_of(resolver, soon_late, {SOURCE: end + 1}), name="waiting"
            )
            await eventually(lambda: soon_late.has_expired(datetime.now(UTC)))
            await producer.publish(SOURCE, ["k"])
        assert "expired" in str(waiting.result())


async def _refusal_of(
    resolver: Resolver, claims: Claims, read_through: dict[str, int]
) -> UnauthenticatedError:
    with pytest.raises(UnauthenticatedError) as caught:
        await resolver.resolve(MINE, claims=claims, may_proxy=False, read_through=read_through)
    return caught.value


async def test_call_that_no_member_verified_has_no_claims(running: Callable[[], Any]) -> None:
    """A service that was added to a server of the application's own has passed no guard, so nothing is known of its
    caller: it is refused, and is not taken for the process itself.
    """
    refusals: list[ClaimsMissingError] = []

    async with running() as member:

        async def count(request: bytes, context: Context) -> bytes:
            try:
                async with serving_shard(member.service.resolver, context, request.decode()):
                    return b"served"
            except ClaimsMissingError as error:
                refusals.append(error)
                return b"refused"

        server = grpc.aio.server()
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(count)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Count": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary(f"/{SERVICE}/Count")
            assert await call(MINE.encode()) == b"refused"
        await server.stop(None)

    assert "register_services" in str(refusals[0])
