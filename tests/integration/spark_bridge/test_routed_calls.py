"""A task's calls reach a shard's primary, wherever it is, and end in time with words that help."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.consumer.member.service import Service
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import KeyedAuth
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.spark_bridge.errors import (
    MembersGoneError,
    NoMemberError,
    ShardNotServedError,
    TokenIgnoredError,
)
from broadsheet.spark_bridge.routing.channels import this_worker
from broadsheet.spark_bridge.routing.member_list import MemberDirectory, MemberLists
from broadsheet.spark_bridge.shard_tables.access import ClusterAccess, NoMemberAnsweredError
from broadsheet.spark_bridge.shard_tables.shard_listing import list_shards
from broadsheet.spark_bridge.task_resolver import TaskResolver, close_connections, token_of_heads
from broadsheet.wire.shard_pb2 import GetHintsRequest, StatRequest
from tests.support.asked_tally import TallyStub
from tests.support.certificates import CertificateAuthority
from tests.support.members import Producer, client_of, shard, upserts, wait_for_primaries
from tests.support.resolving import (
    JOURNALS,
    AskedCluster,
    ask,
    connections_closed,
    resolver_of,
)

pytestmark = pytest.mark.etcd

SHARD = "ask-0"
KEYS = "c2VjcmV0IG9mIHRoZSB0ZXN0LCAzMiBieXRlcyBvciBtb3Jl"


async def test_moved_shard_is_followed_by_old_stubs(
    cluster: AskedCluster, journals: JournalClient
) -> None:
    """The primary leaves in good order and the standby's process takes over, twice: the same resolver, and one that was
    pickled before the move, go on asking as if nothing was.
    """
    async with cluster.member("a") as first:
        client = client_of(first)
        async with client:
            await client.apply(upserts(shard(SHARD, JOURNALS[0])))
            await wait_for_primaries(client, SHARD)
        producer = Producer(journals)
        end = await producer.publish(JOURNALS[0], "abc")
        resolver = await resolver_of(first, token={JOURNALS[0]: end})
        assert await ask(resolver, SHARD) == 3

        async with cluster.member("b") as second:
            # One that knew the first member alone could ask nobody, once that is gone.
            shipped = pickle.dumps(await resolver_of(first, second, token={JOURNALS[0]: end}))
            first.stop()
            assert await ask(resolver, SHARD) == 3
            async with client_of(second) as client:
                await wait_for_primaries(client, SHARD)
            assert await ask(pickle.loads(shipped), SHARD) == 3  # noqa: S301 - our own
            assert this_worker().channels.endpoints


async def test_killed_primary_is_replaced_under_calls(
    cluster: AskedCluster, journals: JournalClient
) -> None:
    """The primary's server is gone without a word while calls go on: all of them are answered, by the standby's member
    in the end, and none takes as long as its deadline.
    """
    async with cluster.member("b") as second, client_of(second) as client:
        async with cluster.member("a") as first:
            await client.apply(upserts(shard(SHARD, JOURNALS[0], hot_standbys=1)))
            await wait_for_primaries(client, SHARD)
            resolver = await resolver_of(first, second)
            await Producer(journals).publish(JOURNALS[0], "ab")
            stub = resolver.stub(SHARD, TallyStub)
            calls = [stub.Count.future(StatRequest(shard=SHARD)) for _ in range(8)]
            first.force_stop()
            calls += [stub.Count.future(StatRequest(shard=SHARD)) for _ in range(8)]
        answers = await asyncio.gather(*map(asyncio.wrap_future, calls))
        totals = {answer.publish_at["total"] for answer in answers}

        assert totals <= {0, 1, 2}
        heads = await asyncio.to_thread(token_of_heads, cluster.broker_address, JOURNALS)
        assert await ask(resolver.reading(heads), SHARD) == 2


async def test_resolver_outlives_every_member_that_it_was_given(
    cluster: AskedCluster, tmp_path: Path
) -> None:
    """Plan: all members of the driver's plan are replaced while no task runs; a new worker asks, and one after it that
    cannot reach etcd.

    Why: a streaming query's functions are pickled once, and its rows stood still without an error on the driver.
    """
    directory = MemberDirectory(
        etcd=EtcdConfig(endpoints=(cluster.etcd_endpoint,)), root=cluster.root
    )
    async with cluster.member("a") as first, client_of(first) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0])))
        await wait_for_primaries(client, SHARD)
        resolver = await resolver_of(first, directory=directory, deadline_seconds=20)
        alone = await resolver_of(first, deadline_seconds=3)
    async with cluster.member("b") as second, client_of(second) as client:
        await wait_for_primaries(client, SHARD)
        with (
            worker_with_lists(tmp_path / "other"),
            pytest.raises(MembersGoneError, match="UNAVAIL"),
        ):
            await ask(_shipped(alone), SHARD)

        with worker_with_lists(tmp_path / "lists"):
            assert await ask(_shipped(resolver), SHARD) == 0
        with worker_with_lists(tmp_path / "lists"):
            assert await ask(_shipped(resolver, directory=None), SHARD) == 0

        table = ClusterAccess(addresses=(first.address,))
        listed = await list_shards(replace(table, etcd=directory.etcd, root=cluster.root), "")
        assert [each.spec.id for each in listed.shards] == [SHARD]
        with pytest.raises(NoMemberAnsweredError, match="etcd and root"):
            await list_shards(table, "")
        with pytest.raises(NoMemberAnsweredError, match="no other member is at /empty"):
            await list_shards(replace(table, etcd=directory.etcd, root="/empty"), "")


async def test_member_of_another_cluster_at_a_known_address_is_not_believed(
    cluster: AskedCluster,
) -> None:
    """An address is used again by another cluster's member, which does not have the shard.

    Why: in the weeks of a query addresses are given to others, and the shard would be "not found".
    """
    async with cluster.member("a") as member:
        resolver = await resolver_of(member, deadline_seconds=3)
        foreign = _shipped(resolver, cluster_id=7, cluster="7:x")

        with pytest.raises(MembersGoneError, match="belongs to another cluster by now"):
            await ask(foreign, "ask-9")
        with pytest.raises(ShardNotFoundError):
            await ask(resolver, "ask-9")


def _shipped(resolver: TaskResolver, **changes: Any) -> TaskResolver:
    """Return a resolver as a task of a query gets it that was started an hour ago."""
    shipped: TaskResolver = pickle.loads(pickle.dumps(resolver))  # noqa: S301 - our own
    plan = replace(shipped.plan, made_at=time.time() - 3600, **changes)
    return TaskResolver.from_plan(plan, shipped.token)


@contextmanager
def worker_with_lists(directory: Path) -> Iterator[None]:
    """Be a new worker, which keeps its lists of members in a directory."""
    with connections_closed():
        this_worker().members = MemberLists(directory)
        yield


async def test_token_is_honoured_in_each_convention(
    cluster: AskedCluster, journals: JournalClient
) -> None:
    """What was just written is in the answer: by metadata, by the request's own field, and in a stream. A method that
    knows neither is found out, for its answer may be older.
    """
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0])))
        await wait_for_primaries(client, SHARD)
        resolver = await resolver_of(member)
        producer = Producer(journals)

        resolver.carry({JOURNALS[0]: await producer.publish(JOURNALS[0], "ab")})
        assert await ask(resolver, SHARD) == 2
        resolver.carry({JOURNALS[0]: await producer.publish(JOURNALS[0], "c")})
        request = StatRequest(shard=SHARD)
        assert await ask(resolver, SHARD, method="CountInBand", request=request) == 3
        assert not request.read_through, "the caller's message is the caller's"
        resolver.carry({JOURNALS[0]: await producer.publish(JOURNALS[0], "d")})
        stub = resolver.stub(SHARD, TallyStub)
        totals = await asyncio.to_thread(
            lambda: [one.publish_at["total"] for one in stub.Watch(StatRequest(shard=SHARD))]
        )
        assert totals == [4, 4]
        with pytest.raises(
            TokenIgnoredError, match=r"CountWithoutToken of shard ask-0 did not say"
        ):
            await ask(resolver, SHARD, method="CountWithoutToken", request=GetHintsRequest())


async def test_token_names_only_journals_that_concern_the_shard(
    cluster: AskedCluster, journals: JournalClient
) -> None:
    """One token for all shards of a job may name thousands of journals, and metadata hold 4 KiB: a shard is told of
    those it reads. So an offset that another shard's journal never reaches does not hold it up either.
    """
    async with cluster.member("a") as member, client_of(member) as client:
        specs = [shard(f"ask-{n}", journal) for n, journal in enumerate(JOURNALS)]
        await client.apply(upserts(*specs))
        await wait_for_primaries(client, "ask-0", "ask-1")
        end = await Producer(journals).publish(JOURNALS[0], "ab")

        resolver = await resolver_of(member, token={JOURNALS[0]: end, JOURNALS[1]: 1 << 40})

        assert await ask(resolver, "ask-0") == 2
        with pytest.raises(ShardNotServedError):
            await ask(resolver, "ask-1", timeout=0.3)


async def test_deadline_error_says_who_was_asked_and_why(
    cluster: AskedCluster, journals: JournalClient
) -> None:
    """No primary until the deadline, since the only member is gone: the error names shard, method, member and cause."""
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0])))
        await wait_for_primaries(client, SHARD)
        resolver = await resolver_of(member, deadline_seconds=2)
        endpoint = member.address
    began = time.monotonic()

    with pytest.raises(ShardNotServedError) as caught:
        await ask(resolver, SHARD)

    assert 1.9 < time.monotonic() - began < 20.0
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.shard_id == SHARD
    assert "/test.AskedTally/Count of shard ask-0 was not answered within 2 s" in str(caught.value)
    assert "UNAVAILABLE" in caught.value.asked[endpoint]
    with pytest.raises(NoMemberError, match="none of 1 members answered"):
        await resolver_of(member)


async def test_unserved_shard_error_says_that_there_is_no_primary(cluster: AskedCluster) -> None:
    """A shard that nobody may serve is not asked for at a member's address."""
    async with cluster.member("a") as member, client_of(member) as client:
        spec = shard(SHARD, JOURNALS[0])
        spec.disable = True
        await client.apply(upserts(spec))
        resolver = await resolver_of(member)

        # At the deadline a look-up may be under way, which then ends without an answer.
        told = r"asked no member: .*(NO_SHARD_PRIMARY|no member told)"
        with pytest.raises(ShardNotServedError, match=told) as caught:
            await ask(resolver, SHARD, timeout=3)
        assert caught.value.asked.keys() == {"no member"}


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "INVALID_ARGUMENT", "INTERNAL"])
async def test_application_errors_are_raised_at_once(cluster: AskedCluster, code: str) -> None:
    """What another attempt would meet again is the caller's business, as with any stub."""
    await _raised_after(cluster, code, attempts=1)


async def test_application_not_found_is_raised_once_the_primary_is_sure(
    cluster: AskedCluster,
) -> None:
    """A wrong process might have answered so; the route is looked up, once, and believed for a second: a DataFrame with
    many unknown keys must not ask for the route with each.
    """
    await _raised_after(cluster, "NOT_FOUND", attempts=1)


async def test_unavailable_is_tried_again_until_the_deadline(cluster: AskedCluster) -> None:
    """With pauses that grow: not thousands of attempts, and more than one."""
    tally = cluster.tally()
    async with cluster.member("a", application=tally) as member:
        resolver = await _served(member)
        # At the deadline the last attempt may be under way.
        told = r"times, last (UNAVAILABLE: as asked|DEADLINE_EXCEEDED)"
        with pytest.raises(ShardNotServedError, match=told):
            await ask(
                resolver,
                SHARD,
                method="Fail",
                request=StatRequest(shard="UNAVAILABLE"),
                timeout=3,
            )
        assert 2 <= tally.asked <= 20


async def test_unknown_shard_is_not_found_at_once(cluster: AskedCluster) -> None:
    """A slip of the pen shall not wait for the deadline."""
    async with cluster.member("a") as member:
        resolver = await resolver_of(member)

        with pytest.raises(ShardNotFoundError):
            await ask(resolver, "no-such-shard")


async def test_shard_made_after_the_resolver_is_found(cluster: AskedCluster) -> None:
    """What the driver did not know is asked of its members."""
    async with cluster.member("a") as member, client_of(member) as client:
        resolver = await resolver_of(member)
        await client.apply(upserts(shard(SHARD, JOURNALS[0])))
        await wait_for_primaries(client, SHARD)

        assert await ask(resolver, SHARD) == 0


async def test_keys_reach_the_shard_that_has_them(
    cluster: AskedCluster, journals: JournalClient
) -> None:
    """A key leads to the shard that reads the journal to which publishers map it."""
    async with cluster.member("a") as member, client_of(member) as client:
        specs = [shard(f"ask-{n}", journal) for n, journal in enumerate(JOURNALS)]
        await client.apply(upserts(*specs))
        await wait_for_primaries(client, "ask-0", "ask-1")
        producer = Producer(journals)
        ends = {
            journal: await producer.publish(journal, "x" * (n + 1))
            for n, journal in enumerate(JOURNALS)
        }
        resolver = await resolver_of(member, mapping="modulo", token=ends)

        totals = {resolver.shard_of(key): await ask(resolver, key) for key in "abcdefgh"}

        assert totals == {"ask-0": 1, "ask-1": 2}
        with pytest.raises(TypeError, match="give the resolver a mapping"):
            (await resolver_of(member)).shard_of(b"key")


async def test_futures_overlap(cluster: AskedCluster, journals: JournalClient) -> None:
    """A UDF that has a batch of keys begins all calls and then takes their answers."""
    async with cluster.member("a") as member:
        resolver = await _served(member)
        stub = resolver.stub(SHARD, TallyStub)

        futures = [stub.Count.future(StatRequest(shard=SHARD)) for _ in range(50)]
        answers = await asyncio.gather(*map(asyncio.wrap_future, futures))

        assert [answer.publish_at["total"] for answer in answers] == [0] * 50


async def test_arguments_are_checked_where_the_user_sees_it(cluster: AskedCluster) -> None:
    """On the driver, and not in ten thousand tasks."""
    with pytest.raises(ValidationError, match="members: expected a cluster or addresses"):
        TaskResolver("http://127.0.0.1:1")
    with pytest.raises(ValidationError, match="deadline_seconds: expected > 0"):
        TaskResolver([], deadline_seconds=0)
    async with cluster.member("a") as member:
        with pytest.raises(ValidationError, match=r"token\[journal\]: expected an offset"):
            await resolver_of(member, token={"journal": -1})
        with pytest.raises(ValidationError, match="journals: expected at least one"):
            await resolver_of(member, mapping="modulo")


async def test_calls_are_signed_where_members_ask_for_it(cluster: AskedCluster) -> None:
    """The survey on the driver, the look-ups and the calls, each with no more than it needs; without keys the driver is
    refused at once.
    """
    cluster.settings = {"auth_keys": KEYS}
    async with cluster.member("a") as member:
        async with client_of(member, KeyedAuth(KEYS)) as client:
            await client.apply(upserts(shard(SHARD, JOURNALS[0])))
            await wait_for_primaries(client, SHARD)
        resolver = await resolver_of(member, auth_keys=KEYS)

        assert await ask(resolver, SHARD) == 0
        assert KEYS not in repr(resolver)
        with pytest.raises(UnauthenticatedError):
            await resolver_of(member)


async def test_calls_go_over_tls_and_never_fall_back(cluster: AskedCluster, tmp_path: Path) -> None:
    """The survey on the driver, the look-ups and the calls speak TLS with certificates of both sides; tasks get the
    names of the files. A route into clear text is not followed, because the token would be readable on the way.
    """
    tls = CertificateAuthority(tmp_path).tls("member", "127.0.0.1", mutual=True)
    cluster.settings = {"tls": tls}
    async with cluster.member("a") as member:
        async with ShardClient(member.address, tls=tls) as client:
            await client.apply(upserts(shard(SHARD, JOURNALS[0])))
            await wait_for_primaries(client, SHARD)
        resolver = await resolver_of(member, tls=tls)
        shipped = pickle.loads(pickle.dumps(resolver))  # noqa: S301 - our own

        assert await ask(resolver, SHARD) == 0
        assert await ask(shipped, SHARD) == 0
        with pytest.raises(NoMemberError, match="--tls-ca"):
            await resolver_of(member)
        plan = shipped.plan
        (route,) = plan.routes
        clear = replace(route, endpoint=route.endpoint.replace("https://", "http://"), replicas=())
        close_connections()
        misled = TaskResolver.from_plan(
            replace(plan, cluster="another", routes=(clear,), seeds=("https://127.0.0.1:1",))
        )
        with pytest.raises(ShardNotServedError, match="does not speak TLS"):
            await ask(misled, SHARD, timeout=2.0)


async def _served(member: Service) -> TaskResolver:
    async with client_of(member) as client:
        await client.apply(upserts(shard(SHARD, JOURNALS[0])))
        await wait_for_primaries(client, SHARD)
    return await resolver_of(member)


async def _raised_after(cluster: AskedCluster, code: str, *, attempts: int) -> None:
    tally = cluster.tally()
    async with cluster.member("a", application=tally) as member:
        resolver = await _served(member)

        with pytest.raises(grpc.RpcError) as caught:
            await ask(resolver, SHARD, method="Fail", request=StatRequest(shard=code))

        assert caught.value.code() is grpc.StatusCode[code]
        assert caught.value.details() == "as asked"
        assert tally.asked == attempts
