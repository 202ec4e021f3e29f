"""What the driver finds out for its tasks: which shards there are, and where, as of one revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumer.client import SyncShardClient
from consumer.errors import EndpointError
from consumer.protocol.auth import KeyedAuth
from consumer.protocol.journal_pb2 import LabelSelector
from spark_bridge.errors import NoMemberError
from spark_bridge.routing.routes import ShardRoute, routes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A member's answer."""

    cluster_id: int
    """Of etcd."""
    revision: int
    routes: tuple[ShardRoute, ...]


def survey(
    addresses: Sequence[str], *, shards: LabelSelector | None = None, auth_keys: str = ""
) -> Survey:
    """Ask members, one after the other, until one answers.

    Args:
        addresses: Of members.
        shards: Which shards are meant; None: all.
        auth_keys: Sign the question; empty: it is not signed.

    Raises:
        NoMemberError: none answered.
        ValidationError: an address is none.
        ConsumerError: a member refused the question.
    """
    met: Exception | None = None
    auth = KeyedAuth(auth_keys) if auth_keys else None
    for address in addresses:
        try:
            with SyncShardClient(address, auth=auth) as client:
                listing = client.list(shards)
        except (EndpointError, TimeoutError) as error:
            met = error
            continue
        etcd = listing.header.etcd
        return Survey(cluster_id=etcd.cluster_id, revision=etcd.revision, routes=routes_of(listing))
    raise NoMemberError(f"none of {len(addresses)} members answered; the last: {met}") from met
