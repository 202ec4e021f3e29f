"""What the driver finds out for its tasks: which shards there are, and where, as of one revision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import grpc

from consumer.protocol.journal_pb2 import LabelSelector
from spark_bridge.errors import NoMemberError
from spark_bridge.routing.lookup import LOOKUP_SECONDS_MAX, NEXT_MEMBER, ask_list
from spark_bridge.routing.routes import ShardRoute, routes_of
from spark_bridge.routing.worker import this_worker


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
        ConsumerError, AllocatorError: a member refused the question.
    """
    worker, met = this_worker(), "there is none"
    for address in addresses:
        try:
            listing = ask_list(worker, address, shards, auth_keys, seconds=LOOKUP_SECONDS_MAX)
        except grpc.RpcError as error:
            if error.code() not in NEXT_MEMBER:
                raise _translated(address, error) from error
            met = f"{address}: {error.code().name}: {error.details()}"
            continue
        etcd = listing.header.etcd
        return Survey(cluster_id=etcd.cluster_id, revision=etcd.revision, routes=routes_of(listing))
    raise NoMemberError(f"none of {len(addresses)} members answered; the last one: {met}")


def _translated(address: str, error: grpc.RpcError) -> Exception:
    # On the driver only, so tasks need not import it.
    from consumer.client.member_rpc import error_of_rpc

    # What both kinds of calls raise has a code and details, which is all that is asked of it.
    return error_of_rpc(address, cast("grpc.aio.AioRpcError", error))
