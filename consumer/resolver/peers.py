"""Channels to the other processes of the cluster, one each, for the single hop of a proxied request."""

from __future__ import annotations

from collections.abc import Collection

import grpc

from allocator.errors import ValidationError
from allocator.runtime.task_group import TaskGroup
from consumer.errors import EndpointError
from consumer.journal.channels import parse_endpoint
from consumer.key_space import member_id_of
from consumer.protocol.journal_pb2 import Header

KEEPALIVE_MILLISECONDS = 10_000
"""A peer that vanished without closing its connection is noticed after this and the timeout below."""
KEEPALIVE_TIMEOUT_MILLISECONDS = 5_000
RECONNECT_MILLISECONDS_MAX = 500
"""A peer that restarts is found again within this; gRPC's own default is two minutes."""
MESSAGE_BYTES_MAX = 16 << 20
"""Largest answer taken from a peer, bytes."""

CLOSE_SECONDS = 5.0
"""Requests under way to a process that left may take so long to finish."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MILLISECONDS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MILLISECONDS_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # One connection a channel object: a closed one must not linger in gRPC's global pool.
    ("grpc.use_local_subchannel_pool", 1),
)


class Peers:
    """Opens channels on first use, and closes those of processes that are gone."""

    def __init__(self) -> None:
        self._channel_by_endpoint: dict[str, grpc.aio.Channel] = {}

    def channel_to(self, header: Header) -> grpc.aio.Channel:
        """Return the channel to the process that `header.process_id` names.

        Raises:
            EndpointError: the route has no address for it: it is about to leave.
        """
        return self.channel_at(_endpoint_in(header))

    def channel_at(self, endpoint: str) -> grpc.aio.Channel:
        """Return the channel to the process that listens at an endpoint."""
        channel = self._channel_by_endpoint.get(endpoint)
        if channel is None:
            try:
                target = parse_endpoint(endpoint)
            except ValidationError as error:
                raise EndpointError(endpoint, error.problem) from error
            channel = grpc.aio.insecure_channel(target.address, options=CHANNEL_OPTIONS)
            self._channel_by_endpoint[endpoint] = channel
        return channel

    def retain(self, endpoints: Collection[str], group: TaskGroup) -> None:
        """Close, in tasks of `group`, the channels to every other endpoint."""
        for endpoint in self._channel_by_endpoint.keys() - set(endpoints):
            channel = self._channel_by_endpoint.pop(endpoint)
            group.start_soon(channel.close(CLOSE_SECONDS), name=f"close channel {endpoint}")

    async def close(self) -> None:
        """Close every channel. Idempotent."""
        while self._channel_by_endpoint:
            _, channel = self._channel_by_endpoint.popitem()
            await channel.close(None)


def _endpoint_in(header: Header) -> str:
    wanted = header.process_id
    route = header.route
    for member, endpoint in zip(route.members, route.endpoints, strict=False):
        if member == wanted and endpoint:
            return endpoint
    raise EndpointError(str(member_id_of(wanted)), "its address is not known: it is leaving")
