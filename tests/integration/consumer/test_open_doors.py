"""What is served and asked in clear text: never where TLS was asked for, and never unguarded by oversight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.client.allocation_client import AllocationClient
from broadsheet.consumer.client.recovery_client import RecoveryClient
from broadsheet.consumer.client.shard_client import ShardClient
from broadsheet.consumer.client.state_client import StateClient
from broadsheet.consumer.client.sync_client import SyncShardClient
from broadsheet.consumer.config import MemberConfig
from broadsheet.consumer.errors import EndpointError
from broadsheet.consumer.member.parts import new_server
from broadsheet.consumer.resolver.resolver import Peers
from broadsheet.spark_bridge.routing.channels import WorkerChannels

HTTPS = "https://member:8080"


@pytest.mark.parametrize(
    "connect",
    [
        ShardClient,
        SyncShardClient,
        AllocationClient,
        RecoveryClient,
        StateClient,
        lambda address: WorkerChannels().borrow(address),
        lambda address: Peers().channel_at(address),
    ],
)
def test_clients_of_members_refuse_tls_that_they_do_not_do(
    connect: Callable[[str], object],
) -> None:
    """An https address was taken for an http one: the token went over the network in clear text, and nobody knew."""
    with pytest.raises((ValidationError, EndpointError), match="asks for TLS") as raised:
        connect(HTTPS)
    assert HTTPS in str(raised.value)


async def test_member_without_keys_does_not_listen_beyond_loopback() -> None:
    """Whoever reaches such a member may read and change its shards: the broker refuses that, and so must a member."""
    config = MemberConfig(
        root="/broadsheet/app",
        suffix="member-1",
        broker_address="http://127.0.0.1:8080",
        bind_host="0.0.0.0",  # noqa: S104 - the point of the test
    )

    with pytest.raises(ValidationError, match=r"auth_keys: expected keys.*--allow-unauthenticated"):
        new_server(config, CollectorRegistry())
