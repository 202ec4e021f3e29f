"""Connects Spark tasks to live shards: `mapPartitions`, `mapInArrow`, `foreachPartition`, pandas UDFs.

    resolver = TaskResolver(cluster, mapping="modulo", journals=FLIGHT_JOURNALS)      # on the driver

    def enriched(rows):                                                               # in a task
        for row in rows:
            stub = resolver.stub(row.aircraft, FlightsServiceStub)
            yield row.aircraft, stub.GetAircraft(GetAircraftRequest(aircraft=row.aircraft)).legs

    df.rdd.mapPartitions(enriched)

A task carries data and no connection. Channels and routes belong to the Python worker, whose later tasks reuse them.
A worker that makes calls for longer than a moment watches one member for changes of routes; else, and after refusals,
it looks routes up at members. Only if the members that it knows do not answer, it reads in etcd which ones live. If
the answers must include what an earlier job wrote, pass the journals' offsets: `resolver.reading(token)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.routing.attempts import CallTarget
from broadsheet.spark_bridge.routing.channels import this_worker
from broadsheet.spark_bridge.routing.heads import token_of_heads
from broadsheet.spark_bridge.routing.key_shards import MappingFactory, key_mapping_of
from broadsheet.spark_bridge.routing.lookup import CAPABILITY_READ, survey
from broadsheet.spark_bridge.routing.member_list import MemberDirectory
from broadsheet.spark_bridge.routing.plan import MemberAccess, ResolverPlan
from broadsheet.spark_bridge.routing.routed_channel import RoutedChannel
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.shard_metadata import Token, check_token, merge_tokens

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

__all__ = [
    "MemberDirectory",
    "TaskResolver",
    "close_connections",
    "token_accumulator",
    "token_of_heads",
]
DEADLINE_SECONDS = 30.0
"""Default deadline of each call, retries included: a hand-over takes less than a second, a lost machine a lease's 20
seconds.
"""
StubT = TypeVar("StubT")


def token_accumulator(spark: SparkSession) -> Accumulator[dict[str, int]]:
    """Return an accumulator of tokens: tasks add theirs, and the driver reads the merged one, `accumulator.value`.

    A task that runs again adds its token again, which changes nothing, because the greater of two offsets counts.
    """
    from pyspark.accumulators import AccumulatorParam

    class MergedTokens(AccumulatorParam[dict[str, int]]):
        def zero(self, value: dict[str, int]) -> dict[str, int]:
            del value
            return {}

        def addInPlace(  # noqa: N802 - Spark's name
            self, value1: dict[str, int], value2: Token
        ) -> dict[str, int]:
            return merge_tokens(value1, value2)

    return spark.sparkContext.accumulator({}, MergedTokens())


class _Member(Protocol):
    @property
    def endpoint(self) -> str: ...


class Members(Protocol):
    """The part of a `ShardCluster` that a resolver needs."""

    @property
    def root(self) -> str:
        """Prefix of the cluster's keys in etcd."""
        ...

    @property
    def auth_keys(self) -> str:
        """Keys that sign requests; empty: none is signed."""
        ...

    @property
    def tls(self) -> TlsConfig | None:
        """Files for members that serve TLS."""
        ...

    @property
    def directory(self) -> MemberDirectory:
        """The list of living members in etcd."""
        ...

    def members(self) -> Sequence[_Member]:
        """Return the live members."""
        ...


class TaskResolver:
    """Creates stubs that call shards' primaries. It can be pickled, so closures carry it to tasks."""

    def __init__(
        self,
        members: Members | Sequence[str],
        *,
        shards: LabelSelector | None = None,
        mapping: str | MappingFactory | None = None,
        journals: Sequence[str] | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        token: Token | None = None,
        auth_keys: str | None = None,
        capability: int = CAPABILITY_READ,
        tls: TlsConfig | None = None,
        directory: MemberDirectory | None = None,
    ) -> None:
        """Look up the shards and their routes at a member; create it on the driver, once a job.

        Args:
            members: A `ShardCluster`, or addresses of members of any cluster, `http://host:port` or `https://host:port`.
            shards: The shards that tasks will call; None: all.
            mapping: The publishers' mapping of keys to journals: `modulo`, `rendezvous`, or a function like
                `broadsheet.journals.modulo_mapping`. With it, `stub` takes a key; without it, a shard's id.
            journals: Those that publishers choose among, in their order; None: all that the shards read, by name.
            deadline_seconds: Of each call, retries included, unless the call has a `timeout`.
            token: Offsets that every answer must have read through, bytes by journal.
            auth_keys: Keys that sign calls, or `file:PATH` of a file with them on each machine; None: those of the
                `ShardCluster`; empty: none is signed.
            capability: Capabilities that the application's methods need: bits of `Capability`.
            tls: Files for members that serve TLS, at the same path on executors; None: those of the `ShardCluster`.
            directory: The list of living members in etcd, for tasks that outlive `members`, as a streaming query's do;
                None: that of the `ShardCluster`. A query of addresses alone ends when it has outlived all of them.

        Raises:
            NoMemberError: none of the members answered.
            UnauthenticatedError, NotAuthorizedError: a member answered, and needs other keys.
            ValidationError: an argument is invalid; or keys cannot be mapped to these shards.
        """
        if deadline_seconds <= 0:
            raise ValidationError("deadline_seconds", f"expected > 0, got {deadline_seconds:g}")
        seeds, root = _known_of(members)
        if not isinstance(members, Sequence):
            auth_keys = members.auth_keys if auth_keys is None else auth_keys
            tls = members.tls if tls is None else tls
            directory = members.directory if directory is None else directory
        access = MemberAccess(auth_keys=auth_keys or "", tls=tls)
        found = survey(seeds, shards=shards, access=access)
        self._token: dict[str, int] = {}
        self._stubs: dict[tuple[str, object], Any] = {}  # `Any`: each is of its own class
        self._plan = ResolverPlan(
            cluster=f"{found.cluster_id}:{root or ','.join(sorted(seeds))}",
            cluster_id=found.cluster_id,
            shards=shards,
            revision=found.revision,
            seeds=seeds,
            routes=found.routes,
            key_mapping=None
            if mapping is None
            else key_mapping_of(mapping, found.routes, journals=journals),
            deadline_seconds=deadline_seconds,
            access=access,
            capability=int(capability),
            directory=directory,
        )
        self.carry(token or {})

    @classmethod
    def from_plan(cls, plan: ResolverPlan, token: Token | None = None) -> TaskResolver:
        """Return a resolver of a plan that was made before; nothing is looked up.

        Raises:
            ValidationError: the token is no mapping of journals to offsets.
        """
        made = object.__new__(cls)
        made.__setstate__({"plan": plan, "token": {}})
        made.carry(token or {})
        return made

    @property
    def plan(self) -> ResolverPlan:
        """The members, routes and settings that tasks get: what is pickled, beside the token."""
        return self._plan

    @property
    def shards(self) -> tuple[str, ...]:
        """Ids of the shards when the resolver was created, sorted."""
        return tuple(sorted(route.shard_id for route in self._plan.routes))

    @property
    def token(self) -> dict[str, int]:
        """Offsets that the next answers must have read through, bytes by journal."""
        return dict(self._token)

    def stub(self, shard_or_key: str | bytes, stub_class: Callable[[grpc.Channel], StubT]) -> StubT:
        """Return a stub whose calls are answered by a shard's primary at the time of the call.

        Calls are retried until the deadline while the shard moves or its member cannot be reached, so a method may run
        more than once. Other errors are raised as gRPC's.

        Args:
            shard_or_key: A key, if the resolver has a mapping: text or bytes as publishers hash it. Else a shard's id.
            stub_class: The generated stub; any function of a channel.

        Raises:
            TypeError: it is neither; or bytes were given, and the resolver has no mapping.
        """
        return self.stub_of_shard(self.shard_of(shard_or_key), stub_class)

    def stub_of_shard(self, shard_id: str, stub_class: Callable[[grpc.Channel], StubT]) -> StubT:
        """Return a stub as `stub` does, for a shard that is named, also if the resolver has a mapping of keys."""
        held = (shard_id, stub_class)
        found: StubT | None = self._stubs.get(held)
        if found is None:
            target = CallTarget(plan=self._plan, shard_id=shard_id, token=lambda: self._token)
            found = self._stubs.setdefault(held, stub_class(RoutedChannel(target)))
        return found

    def shard_of(self, shard_or_key: str | bytes) -> str:
        """Return the id of the shard that `stub` would call; tasks that send many keys in one call group by it."""
        if self._plan.key_mapping is not None:
            return self._plan.key_mapping.shard_of(shard_or_key)
        if not isinstance(shard_or_key, str):
            raise TypeError(
                f"shard_or_key: expected a shard's id, got {type(shard_or_key).__name__}; "
                "for keys, give the resolver a mapping"
            )
        return shard_or_key

    def reading(self, token: Token) -> TaskResolver:
        """Return a resolver whose answers have also read through a token; for the driver, before its next job.

        Raises:
            ValidationError: it is no mapping of journals to offsets.
        """
        other = TaskResolver.from_plan(self._plan, self._token)
        other.carry(token)
        return other

    def carry(self, token: Token) -> None:
        """Make later answers read through a token, too; for a task that has just written or seen these offsets.

        Raises:
            ValidationError: it is no mapping of journals to offsets.
        """
        check_token(token)
        self._token = merge_tokens(self._token, token)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self._plan, "token": self._token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._plan = state["plan"]
        self._token = dict(state["token"])
        # Stubs hold channels, which cannot be pickled.
        self._stubs = {}


def close_connections() -> None:
    """Close what this process keeps for later tasks: its watch and its connections.

    They end by themselves, too: the watch 10 seconds after the last call, and idle connections 10 seconds after that.
    """
    this_worker().close()


def _known_of(members: Members | Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return addresses and root."""
    if isinstance(members, str):
        raise ValidationError("members", f"expected a cluster or addresses, got the text {members}")
    if isinstance(members, Sequence):
        return tuple(members), ""
    endpoints = tuple(member.endpoint for member in members.members())
    return endpoints, members.root
