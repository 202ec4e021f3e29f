"""Looks up primaries at members, by their List, with one request for many shards; a task never asks etcd."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import grpc

from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.security.tls import handshake_advice
from broadsheet.spark_bridge.errors import NoMemberError
from broadsheet.spark_bridge.routing.channels import PythonWorkerCache, this_worker
from broadsheet.spark_bridge.routing.plan import MemberAccess, ResolverPlan
from broadsheet.spark_bridge.routing.routes import ShardRoute, routes_of
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import ID, label_set, selector
from broadsheet.wire.shard_pb2 import ListRequest, ListResponse
from broadsheet.wire.shard_pb2_grpc import ShardStub

if TYPE_CHECKING:
    from broadsheet.security.auth import KeyedAuth

CAPABILITY_LIST, CAPABILITY_READ = 2, 8
"""Values of `Capability.LIST` and `READ`, because importing their module takes a third of a short task's imports."""
LOOKUP_SECONDS_MAX = 5.0
"""Longest wait for one member's listing; then another is asked."""
LOOKUP_SHARDS_MAX = 128
"""Most shards in one question."""
TOKEN_LIFE_SECONDS_MIN = 60.0
"""Life of a credential, unless the call may take longer."""
SILENT_MEMBERS_MAX = 2
"""Members that do not answer before the cluster's own list is read, because it may have others by now."""
PLAN_SECONDS = 60.0
"""Age of a plan after which its routes are looked up, unless a worker found their members lately. A call to a machine
that is gone may take its whole deadline.
"""
NEXT_MEMBER = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Status codes that concern the member asked and not the question, so that another member is asked."""
Metadata = tuple[tuple[str, str | bytes], ...]


def believed_route(
    plan: ResolverPlan, worker: PythonWorkerCache, shard_id: str, *, deadline: float
) -> ShardRoute:
    """Return the route of a shard, looked up if need be.

    Args:
        plan: Where to look.
        worker: The cache of this process.
        shard_id: The shard.
        deadline: Monotonic seconds.

    Raises:
        ShardNotFoundError: there is no such shard.
        NoMemberError: no member answered.
        grpc.RpcError: a member refused the question.
    """
    table, now = worker.routes(plan.cluster), time.monotonic()
    route = table.believed(shard_id, now)
    if route is not None:
        return route
    if table.known(shard_id) is None:
        # The first task here: the driver's knowledge is most likely still true, and calls find out if it is not.
        table.suppose(_still_likely(plan, worker), now)
        route = table.believed(shard_id, now)
        if route is not None:
            return route
    return _look_up(plan, worker, shard_id, deadline=deadline)


def credentials(
    auth_keys: str, capability: int, shards: LabelSelector | None, *, seconds: float
) -> Metadata:
    """Return the metadata that authorize one request about some shards; empty without keys.

    Args:
        auth_keys: The cluster's.
        capability: Capability that the request needs.
        shards: The request's shards; None: all.
        seconds: Longest duration of the request.
    """
    if not auth_keys:
        return ()
    from broadsheet.security.auth import Capability, expiring

    life_seconds = max(TOKEN_LIFE_SECONDS_MIN, seconds + 1.0)
    claims = expiring(Capability(capability), shards, life_seconds=life_seconds)
    return _auth_of(auth_keys).metadata(claims)


def ask_list(
    worker: PythonWorkerCache,
    endpoint: str,
    shards: LabelSelector | None,
    access: MemberAccess,
    *,
    seconds: float,
) -> ListResponse:
    """Ask one member for shards.

    Raises:
        grpc.RpcError: it did not answer, or refused.
    """
    with worker.channels.borrowed(endpoint, access.tls) as channel:
        response: ListResponse = ShardStub(channel).List(
            ListRequest(selector=shards),
            timeout=seconds,
            metadata=credentials(access.auth_keys, CAPABILITY_LIST, shards, seconds=seconds),
        )
    return response


def selecting(*shard_ids: str) -> LabelSelector:
    """Return the selector of some shards."""
    return selector(label_set(*((ID, shard_id) for shard_id in shard_ids)))


def _look_up(
    plan: ResolverPlan, worker: PythonWorkerCache, shard_id: str, *, deadline: float
) -> ShardRoute:
    table = worker.routes(plan.cluster)
    others = (route.shard_id for route in plan.routes)
    wanted = table.to_look_up(shard_id, others, time.monotonic(), limit=LOOKUP_SHARDS_MAX)
    question, met = selecting(*wanted), "no member is known"
    doubted = table.known(shard_id)
    last = "" if doubted is None else doubted.endpoint
    for endpoint in _members_in_turn(plan, worker, last=last):
        seconds = min(deadline - time.monotonic(), LOOKUP_SECONDS_MAX)
        if seconds <= 0:
            break
        try:
            listing = ask_list(worker, endpoint, question, plan.access, seconds=seconds)
        except grpc.RpcError as error:
            # It is about the question, so another member would refuse it, too.
            if error.code() not in NEXT_MEMBER:
                raise
            met = f"{endpoint}: {error.code().name}: {error.details()}"
            continue
        if plan.cluster_id and listing.header.etcd.cluster_id != plan.cluster_id:
            met = f"{endpoint} belongs to another cluster by now"
            continue
        table.learn(routes_of(listing), time.monotonic())
        worker.members.keep(plan.cluster, table.endpoints())
        known, revision = table.known(shard_id), listing.header.etcd.revision
        if any(listed.spec.id == shard_id for listed in listing.shards) and known is not None:
            return known
        # A member that lags may not have seen the shard's creation yet, so only a recent one is believed.
        if revision >= max(plan.revision, 0 if known is None else known.revision):
            raise ShardNotFoundError(shard_id, listing.header)
        met = f"{endpoint} is at revision {revision} only"
    raise NoMemberError(f"no member told who serves shard {shard_id}; the last one: {met}")


def _still_likely(plan: ResolverPlan, worker: PythonWorkerCache) -> Iterator[ShardRoute]:
    """Yield the routes of a plan that may be used without a look-up."""
    is_recent = time.time() - plan.made_at < PLAN_SECONDS
    found = () if is_recent else worker.members.known(plan.cluster)
    return (route for route in plan.routes if is_recent or route.endpoint in found)


def _members_in_turn(plan: ResolverPlan, worker: PythonWorkerCache, *, last: str) -> Iterator[str]:
    """Yield the members to ask, each once; after some that did not answer, those of the cluster's own list first."""
    waiting = members_to_ask(plan, worker, last=last)
    asked: set[str] = set()
    may_refresh = plan.directory is not None
    while waiting or may_refresh:
        if may_refresh and plan.directory and (len(asked) >= SILENT_MEMBERS_MAX or not waiting):
            may_refresh = False
            living = worker.members.refresh(plan.cluster, plan.directory)
            waiting = [each for each in (*living, *waiting) if plan.permits(each)]
        waiting = [each for each in waiting if each not in asked]
        if waiting:
            asked.add(waiting[0])
            yield waiting[0]


def members_to_ask(plan: ResolverPlan, worker: PythonWorkerCache, *, last: str) -> list[str]:
    """Return the members to ask: those of routes, the driver's, and those found later, in random order.

    Args:
        plan: Has the driver's, and says which may be asked.
        worker: The cache of this process.
        last: The member to ask after all others, such as a doubted primary; empty: none.
    """
    table = worker.routes(plan.cluster)
    # Sorted before it is shuffled, because the order of a set would not depend on the random source alone.
    found = sorted(
        each
        for each in {*table.endpoints(), *plan.seeds, *worker.members.known(plan.cluster)}
        if plan.permits(each)
    )
    worker.random.shuffle(found)
    return sorted(found, key=lambda endpoint: endpoint == last)


@lru_cache(maxsize=8)
def _auth_of(keys: str) -> KeyedAuth:
    from broadsheet.security.auth import KeyedAuth

    return KeyedAuth(keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A member's listing of shards and their routes at one revision, for the driver to give to its tasks."""

    cluster_id: int
    """Id of the etcd cluster."""
    revision: int
    routes: tuple[ShardRoute, ...]


def survey(
    addresses: Sequence[str],
    *,
    shards: LabelSelector | None = None,
    access: MemberAccess,
) -> Survey:
    """Ask members, one after the other, until one answers.

    Args:
        addresses: Of members.
        shards: The shards to list; None: all.
        access: Signs the request, if it has keys, and has the files for `https://` addresses.

    Raises:
        NoMemberError: none answered.
        ValidationError: an address is malformed.
        BroadsheetError: a member refused the question.
    """
    worker, met = this_worker(), "there is none"
    for address in addresses:
        try:
            listing = ask_list(worker, address, shards, access, seconds=LOOKUP_SECONDS_MAX)
        except grpc.RpcError as error:
            if error.code() not in NEXT_MEMBER:
                raise _translated(address, error) from error
            advice = handshake_advice(address, error.details() or "")
            met = f"{address}: {advice or error.code().name}: {error.details()}"
            continue
        etcd = listing.header.etcd
        return Survey(cluster_id=etcd.cluster_id, revision=etcd.revision, routes=routes_of(listing))
    raise NoMemberError(f"none of {len(addresses)} members answered; the last one: {met}")


def _translated(address: str, error: grpc.RpcError) -> Exception:
    # Imported here, because only the driver needs it.
    from broadsheet.consumer.client.member_rpc import error_of_rpc

    # What both kinds of calls raise has a code and details, which is all that is asked of it.
    return error_of_rpc(address, cast("grpc.aio.AioRpcError", error))
