"""Identities that tasks make can be told from others, and attempts of one task from each other."""

from __future__ import annotations

import functools

import pytest

from broadsheet.allocator.model import MemberId
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.cluster.shards import read_replicas
from broadsheet.spark_bridge.errors import ApplicationLoadError
from broadsheet.spark_bridge.keys import failure_key, hosts_prefix, orders_prefix, publication_key
from broadsheet.spark_bridge.member.application import Arguments, load_application
from broadsheet.spark_bridge.member.executor import own_address, zone_of
from broadsheet.spark_bridge.member.identity import Incarnation, parse_suffix
from broadsheet.wire.journal_pb2 import ProcessSpec, Route
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec


@pytest.mark.parametrize("application_id", ["app-20261231235959-0000", "local-1795221854674"])
def test_parse_suffix_of_an_incarnation_returns_it(application_id: str) -> None:
    """The driver recognises its members by their suffix alone."""
    incarnation = Incarnation(application_id=application_id, partition=12, attempt=345)

    assert parse_suffix(incarnation.suffix) == incarnation


@pytest.mark.parametrize(
    "suffix", ["", "brave-otter", "app-1", "app-1-x", "app-x-1", "-1-2", "app-1-²"]
)
def test_parse_suffix_of_another_process_returns_none(suffix: str) -> None:
    """Members that no task made share the root: they are none of ours to count or to revoke."""
    assert parse_suffix(suffix) is None


def test_attempts_prefix_of_partition_1_is_no_prefix_of_partition_12() -> None:
    """Predecessors are found by prefix: another partition's must not match."""
    first = Incarnation(application_id="app-1", partition=1, attempt=0)
    twelfth = Incarnation(application_id="app-1", partition=12, attempt=0)

    assert not twelfth.suffix.startswith(first.attempts_prefix)


def test_bridge_keys_are_not_under_the_watched_root() -> None:
    """Every member decodes what is under the root; our keys there would be reported as broken ones."""
    for key in (
        orders_prefix("/a/b", "c"),
        hosts_prefix("/a/b", "c"),
        failure_key("/a/b", "c"),
        publication_key("/a/b", "p"),
    ):
        assert key.startswith(b"/a/b.")

    with pytest.raises(ValidationError, match="root: expected an absolute clean path"):
        orders_prefix("a/", "c")


def test_load_application_name_without_factory_says_what_was_expected() -> None:
    """A wrong name fails on executors, far from the user: the text must stand alone."""
    with pytest.raises(ApplicationLoadError, match="expected module:factory, got 'os'"):
        load_application("os", Arguments({}))
    with pytest.raises(ApplicationLoadError, match=r"cannot be imported: .*no attribute 'nothing'"):
        load_application("os:nothing", Arguments({}))


def test_zone_and_address_come_from_the_executor() -> None:
    """What the executor's environment says wins; else the route to the broker tells the address."""
    assert zone_of({"BROADSHEET_ZONE": "rack-7"}) == "rack-7"
    assert own_address({"SPARK_LOCAL_IP": "10.1.2.3"}, towards="http://127.0.0.1:1") == "10.1.2.3"
    assert own_address({}, towards="http://127.0.0.1:1") == "127.0.0.1"


def test_read_replicas_counts_primaries_that_serve() -> None:
    """Of a failed primary the caller learns why; one that was just killed can be left out."""
    member = ProcessSpec.ID(zone="z", suffix="app-0-0")
    serving, failed = (
        ListResponse.Shard(
            spec=ShardSpec(id=shard_id), route=Route(members=[member]), status=[status]
        )
        for shard_id, status in (
            ("shard-a", ReplicaStatus(code=ReplicaStatus.PRIMARY)),
            ("shard-b", ReplicaStatus(code=ReplicaStatus.FAILED, errors=["no such table"])),
        )
    )
    listing = ListResponse(shards=[serving, failed])

    found = read_replicas(listing)

    assert found.primaries == {"shard-a": MemberId("z", "app-0-0")}
    assert found.describe("shard-b") == "shard-b (FAILED on z#app-0-0: no such table)"
    assert found.describe("shard-c") == "shard-c (no such shard)"
    assert read_replicas(listing, not_on={MemberId("z", "app-0-0")}).primaries == {}


def test_load_application_gives_the_arguments_to_factories_that_take_them() -> None:
    """A factory without parameters, or whose parameters all have defaults, is called as it is."""
    arguments = Arguments({"a": "1"})
    given: list[object] = []

    load_application(lambda: given.append(None), arguments)  # type: ignore[arg-type]  # makes no application
    load_application(functools.partial(given.append, "bound"), arguments)  # type: ignore[arg-type]  # as above
    load_application(given.append, arguments)  # type: ignore[arg-type]  # as above

    assert given == [None, "bound", arguments]
