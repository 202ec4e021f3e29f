"""What the driver does to a cluster's shards, through whichever member answers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

import structlog

from allocator.model import MemberId
from consumer.errors import EndpointError
from consumer.protocol.shard_pb2 import ApplyRequest, ShardSpec
from spark_bridge.cluster.elasticity import wait_until
from spark_bridge.cluster.member_client import MemberClient
from spark_bridge.cluster.replicas import Replicas, read_replicas
from spark_bridge.errors import NoMemberError

log = structlog.get_logger()


class Shards:
    """Applies specs, and waits for primaries; a member that cannot be reached is not asked again."""

    def __init__(self, client: MemberClient) -> None:
        """Bind them.

        Args:
            client: Of the cluster's members.
        """
        self._client = client

    def apply(self, specs: Iterable[ShardSpec], *, timeout_seconds: float) -> None:
        """Create or update shards, whatever their present revision.

        Raises:
            TimeoutError: no member answered.
        """
        changes = [ApplyRequest.Change(upsert=spec, expect_mod_revision=-1) for spec in specs]

        def applied() -> bool:
            self._client.current().apply(changes)
            return True

        if not self._ask_until(applied, timeout_seconds=timeout_seconds):
            raise TimeoutError(f"no member answered within {timeout_seconds:g} s")

    def wait_for_primary(
        self, shard_ids: Iterable[str], *, not_on: Container[MemberId], timeout_seconds: float
    ) -> dict[str, MemberId]:
        """Wait until every shard has a primary that serves; return who it is, by shard id.

        Raises:
            TimeoutError: some have none; the message names them and what is known of them.
        """
        wanted = frozenset(shard_ids)
        found = Replicas()

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
                log.debug("cluster.member_unreachable", error=str(error))
                self._client.give_up()
                return False

        return wait_until(holds, timeout_seconds=timeout_seconds)
