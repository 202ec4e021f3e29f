"""The clients of a member's services: one constructor, and claims no wider than a request needs."""

from __future__ import annotations

import inspect

import pytest

from broadsheet.consumer import AllocationClient, RecoveryClient, ShardClient
from broadsheet.consumer.client import StateClient
from broadsheet.consumer.client.member_rpc import MemberClient, shard_claims
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import Capability
from broadsheet.wire.labels import ID, values_of

CLIENTS = (ShardClient, AllocationClient, RecoveryClient, StateClient)


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_of_a_member_share_one_constructor(client: type[MemberClient]) -> None:
    """An argument that one client has and another lacks surprises its user, so all four have the same constructor."""
    assert client.__init__ is MemberClient.__init__
    assert list(inspect.signature(client).parameters) == [
        "address",
        "auth",
        "timeout_seconds",
        "on_passed_over",
        "tls",
    ]
    assert client("localhost:8080").address == "localhost:8080"
    with pytest.raises(ValidationError, match="expected"):
        client("no address")


def test_claims_of_shards_name_each_of_them() -> None:
    """A selector without labels selects every shard, so claims that name none would be a key to all."""
    claims = shard_claims(Capability.READ, "shard-a", "shard-b", life_seconds=5.0)
    assert claims.capability == Capability.READ
    assert values_of(claims.selector.include, ID) == ["shard-a", "shard-b"]
    with pytest.raises(TypeError):
        shard_claims(Capability.READ)  # type: ignore[call-arg]  # What is tried.
