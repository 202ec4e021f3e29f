"""What a `ShardCluster` lets its user set of its members."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

from broadsheet.consumer.member.config import MemberConfig
from broadsheet.spark_bridge.cluster import MemberSettings

CHOSEN_BY_THE_CLUSTER = {
    "root",
    "suffix",
    "zone",
    "host",
    "port",
    "etcd",
    "broker_address",
    "revoke_predecessors_prefix",
    "revoke_in_any_zone",
}
"""The cluster's own arguments, and what each task finds out where it runs."""


def test_cluster_passes_every_setting_of_a_member_on() -> None:
    """Whatever `shardctl serve` can be told, a cluster can be told too, under the same name and type."""
    settings = get_type_hints(MemberSettings)

    config = get_type_hints(MemberConfig)
    names = {each.name for each in fields(MemberConfig)} - CHOSEN_BY_THE_CLUSTER
    assert settings == {name: config[name] for name in names}
