"""Applies shard specs and waits for primaries, from the driver, through any member that answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from broadsheet.allocator.model import MemberId
from broadsheet.consumer.client import SyncShardClient
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.security.auth import ClientAuth
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.tls import TlsConfig
from broadsheet.spark_bridge.cluster.broker_journals import BrokerAccess
from broadsheet.spark_bridge.cluster.elasticity import wait_until
from broadsheet.spark_bridge.cluster.membership import MemberInfo
from broadsheet.spark_bridge.errors import NoMemberError
from broadsheet.spark_bridge.routing.heads import token_of_heads
from broadsheet.wire.shard_pb2 import ApplyRequest, ListResponse, ReplicaStatus, ShardSpec

_log = structlog.get_logger()


class LiveMemberClient:
    """A connection to one live member; when that is gone, to another one."""

    def __init__(
        self,
        members: Callable[[], Sequence[MemberInfo]],
        *,
        auth: ClientAuth | None,
        tls: TlsConfig | None = None,
    ) -> None:
        """Create it, without a connection.

        Args:
            members: Returns the live members.
            auth: Signs each request; None attaches nothing.
            tls: Files for members that serve TLS.
        """
        self._members = members
        self._auth = auth
        self._tls = tls
        self._connected: tuple[MemberId, SyncShardClient] | None = None
        self._unreachable: set[MemberId] = set()

    def current(self) -> SyncShardClient:
        """Return a client of a live member, preferably of one that was reachable.

        Raises:
            NoMemberError: there is none at the moment.
        """
        members = self._members()
        if self._connected is not None:
            held_by, client = self._connected
            if any(member.member_id == held_by for member in members):
                return client
            # Its member has left.
            self.close()
        if not members:
            raise NoMemberError("no member is alive at the moment; Spark starts lost ones again")
        # Forget those that are gone, because ids are never used again.
        self._unreachable &= {member.member_id for member in members}
        chosen = min(
            members,
            key=lambda one: (one.member_id in self._unreachable, one.exiting, one.partition),
        )
        client = SyncShardClient(chosen.endpoint, auth=self._auth, tls=self._tls)
        self._connected = (chosen.member_id, client)
        return client

    def give_up(self) -> None:
        """Drop the member in use, which did not answer, and prefer others from now on."""
        if self._connected is not None:
            self._unreachable.add(self._connected[0])
            self.close()

    def close(self) -> None:
        """Disconnect. Idempotent."""
        if self._connected is not None:
            connected, self._connected = self._connected, None
            connected[1].close()


@dataclass(frozen=True, slots=True)
class ShardReplicas:
    """The shards of a listing, by id."""

    primaries: Mapping[str, MemberId] = field(default_factory=dict)
    """Members that serve as primary, by shard id."""
    statuses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Status of each replica of a shard, for messages."""

    def describe(self, shard_id: str) -> str:
        """Return what is known of a shard, on one line."""
        if shard_id not in self.statuses:
            return f"{shard_id} (no such shard)"
        return f"{shard_id} ({', '.join(self.statuses[shard_id]) or 'unassigned'})"


def read_replicas(listing: ListResponse, *, not_on: Container[MemberId] = ()) -> ShardReplicas:
    """Return the replicas of a listing; those on the members `not_on` do not count."""
    primaries: dict[str, MemberId] = {}
    statuses: dict[str, tuple[str, ...]] = {}
    for shard in listing.shards:
        said: list[str] = []
        for process_id, status in zip(shard.route.members, shard.status, strict=True):
            member_id = MemberId(process_id.zone, process_id.suffix)
            errors = f": {'; '.join(status.errors)}" if status.errors else ""
            said.append(f"{ReplicaStatus.Code.Name(status.code)} on {member_id}{errors}")
            if status.code == ReplicaStatus.PRIMARY and member_id not in not_on:
                primaries[shard.spec.id] = member_id
        statuses[shard.spec.id] = tuple(said)
    return ShardReplicas(primaries, statuses)


class Shards:
    """Applies specs, and waits for primaries; a member that cannot be reached is not asked again."""

    def __init__(self, client: LiveMemberClient) -> None:
        """Use one cluster.

        Args:
            client: Of the cluster's members.
        """
        self._client = client

    def apply(
        self,
        specs: Iterable[ShardSpec],
        broker: BrokerAccess,
        *,
        timeout_seconds: float,
    ) -> None:
        """Create or update shards, whatever their present revision, and recovery logs that are not there.

        Raises:
            TimeoutError: no member answered.
        """
        changes = [ApplyRequest.Change(upsert=spec, expect_mod_revision=-1) for spec in specs]

        def applied() -> bool:
            self._client.current().apply(changes)
            return True

        def logs_created() -> bool:
            try:
                self._client.current().create_log_journals(
                    changes, broker_address=broker.address, broker_auth=broker.auth
                )
            except (EndpointError, NotAuthorizedError, UnauthenticatedError) as error:
                # Members read and write the logs; a driver may be where no broker can be reached, or not be allowed
                # to create journals. A log that is missing is then named by its shard's status.
                _log.warning("cluster.log_journals_unchecked", error=str(error))
            return True

        if any(map(recovery_log_of, (change.upsert for change in changes))):
            self._ask_until(logs_created, timeout_seconds=timeout_seconds)
        if not self._ask_until(applied, timeout_seconds=timeout_seconds):
            raise TimeoutError(f"no member answered within {timeout_seconds:g} s")

    def refuse_others(self, shard_ids: Collection[str]) -> None:
        """Refuse a cluster that has shards besides these.

        Raises:
            ValidationError: it has; the message names them.
        """
        there = {shard.spec.id for shard in self._client.current().list().shards}
        if others := sorted(there - set(shard_ids)):
            raise ValidationError(
                "sources",
                f"the cluster has shards of an earlier start that none of them is read by: {', '.join(others)}; name "
                "their journals as well, or delete the shards",
            )

    def verify(self, changes: Sequence[ApplyRequest.Change], broker: BrokerAccess) -> None:
        """Check that the journals that specs name exist, or can be made, and have the right content type.

        Raises:
            ValidationError: see `ShardClient.verify_referenced_journals`.
        """
        client = self._client.current()
        client.create_log_journals(changes, broker_address=broker.address, broker_auth=broker.auth)
        client.verify_referenced_journals(
            changes, broker_address=broker.address, broker_auth=broker.auth
        )

    def wait_read_through(
        self, shard_ids: Iterable[str], broker: BrokerAccess, *, timeout_seconds: float
    ) -> None:
        """Wait until shards have read all that their sources have now, and committed it.

        Raises:
            ShardNotFoundError, TimeoutError, JournalError: see `ShardCluster.wait_read_through`.
        """
        deadline = time.monotonic() + timeout_seconds
        listed = {shard.spec.id: shard.spec for shard in self._client.current().list().shards}
        for shard_id in shard_ids:
            if shard_id not in listed:
                raise ShardNotFoundError(shard_id)
            named = [source.journal.partition(";")[0] for source in listed[shard_id].sources]
            heads = token_of_heads(broker.address, named, auth=broker.auth, tls=broker.tls)
            self._client.current().wait_read_through(
                shard_id, heads, timeout_seconds=deadline - time.monotonic()
            )

    def wait_for_primary(
        self, shard_ids: Iterable[str], *, not_on: Container[MemberId], timeout_seconds: float
    ) -> dict[str, MemberId]:
        """Wait until every shard has a primary that serves; return who it is, by shard id.

        Raises:
            TimeoutError: some have none; the message names them and what is known of them.
        """
        wanted = frozenset(shard_ids)
        found = ShardReplicas()

        def all_serving() -> bool:
            nonlocal found
            found = read_replicas(self._client.current().list(), not_on=not_on)
            return wanted <= found.primaries.keys()

        if not self._ask_until(all_serving, timeout_seconds=timeout_seconds):
            missing = "; ".join(
                found.describe(one) for one in sorted(wanted - found.primaries.keys())
            )
            raise TimeoutError(f"after {timeout_seconds:g} s there is no primary of {missing}")
        return {shard_id: found.primaries[shard_id] for shard_id in wanted}

    def _ask_until(self, condition: Callable[[], bool], *, timeout_seconds: float) -> bool:
        def holds() -> bool:
            try:
                return condition()
            except (EndpointError, NoMemberError, TimeoutError) as error:
                _log.debug("cluster.member_unreachable", error=str(error))
                self._client.give_up()
                return False

        return wait_until(holds, timeout_seconds=timeout_seconds)
