"""Queries the members of a cluster for aircraft, from the driver."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from broadsheet.consumer import EndpointError, ShardError, Status
from broadsheet.examples.flights.flights_pb2 import ListAircraftRequest, ListAircraftResponse
from broadsheet.examples.flights.flights_pb2_grpc import FlightsServiceStub
from broadsheet.security import parse_endpoint
from broadsheet.spark_bridge import NoMemberError, ShardCluster

_RPC_SECONDS_MAX = 30.0
_RETRY_SECONDS_MAX = 60.0
_RETRY_WAIT_SECONDS = 0.2


def list_aircraft(
    cluster: ShardCluster,
    shard: str,
    *,
    limit: int = 0,
    read_through: Mapping[str, int] | None = None,
) -> ListAircraftResponse:
    """Return the aircraft of a shard by minutes late, from its live state.

    Any member is asked, which resolves the shard's primary and forwards. The call is repeated while the shard has none.

    Args:
        cluster: Whose members to ask.
        shard: The shard's id.
        limit: Most aircraft returned; 0 is all.
        read_through: Wait until these offsets are in the answer, bytes by journal.
    """
    asking = Retrying(
        retry=retry_if_exception_type((grpc.RpcError, ShardError, EndpointError, NoMemberError)),
        wait=wait_fixed(_RETRY_WAIT_SECONDS),
        stop=stop_after_delay(_RETRY_SECONDS_MAX),
        reraise=True,
    )
    return asking(ask_for_aircraft, cluster, shard, limit=limit, read_through=read_through)


def ask_for_aircraft(
    cluster: ShardCluster,
    shard: str,
    *,
    limit: int = 0,
    read_through: Mapping[str, int] | None = None,
) -> ListAircraftResponse:
    """Ask once.

    Raises:
        ShardError: the shard cannot be served at the moment.
        grpc.RpcError: the member did not answer.
    """
    request = ListAircraftRequest(shard=shard, limit=limit, read_through=read_through or {})
    # A client of a member that lives now; which one does not matter.
    target = parse_endpoint(cluster.client.address).address
    with grpc.insecure_channel(target) as channel:
        response: ListAircraftResponse = FlightsServiceStub(channel).ListAircraft(
            request, timeout=_RPC_SECONDS_MAX
        )
    if response.status != Status.OK:
        raise ShardError(shard, response.header, Status.Name(response.status))
    return response
