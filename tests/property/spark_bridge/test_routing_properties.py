"""Keys lead where publishers put them, routes never go back in time, and no history of a call makes it rush."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from broadsheet.journals.message.partitioning import (
    MappedJournal,
    modulo_mapping,
    rendezvous_mapping,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.routing.key_shards import key_mapping_of
from broadsheet.spark_bridge.routing.plan import MemberAccess, ResolverPlan
from broadsheet.spark_bridge.routing.retry_policy import (
    ASKED_MAX,
    FOLLOWED_MAX,
    Again,
    CallHistory,
    Confirm,
    Moved,
    Questioned,
)
from broadsheet.spark_bridge.routing.routes import ROUTE_SECONDS, RouteTable, ShardRoute
from broadsheet.wire.journal_pb2 import Header, ProcessSpec, Route
from broadsheet.wire.shard_pb2 import ListResponse, ShardSpec
from broadsheet.wire.watch_pb2 import WatchShardsResponse

FACTORIES = {"modulo": modulo_mapping, "rendezvous": rendezvous_mapping}
ENDPOINTS = st.sampled_from(["", *(f"http://host-{n}:1" for n in range(12))])


def route(shard_id: str, *sources: str, revision: int = 1, endpoint: str = "") -> ShardRoute:
    """A route of a shard."""
    return ShardRoute(
        shard_id=shard_id,
        revision=revision,
        primary="",
        endpoint=endpoint,
        replicas=(endpoint,) if endpoint else (),
        sources=sources,
    )


@given(
    st.sampled_from(sorted(FACTORIES)),
    st.permutations([f"journal-{n}" for n in range(7)]),
    st.integers(1, 7),
    st.text(max_size=30),
)
def test_key_leads_to_the_reader_of_the_publishers_journal(
    name: str, journals: list[str], count: int, key: str
) -> None:
    """Whatever the order of the journals, for text and for its bytes, and in a task as on the driver."""
    chosen = journals[:count]
    publishers = FACTORIES[name](
        lambda message: str(message).encode(), lambda: [MappedJournal(one, "") for one in chosen]
    )
    routes = [route(f"shard of {journal}", journal) for journal in journals]

    mapping = key_mapping_of(name, routes, journals=chosen)
    shipped = pickle.loads(pickle.dumps(mapping))  # noqa: S301 - our own

    wanted = f"shard of {publishers(key).journal}"
    assert mapping.shard_of(key) == mapping.shard_of(key.encode()) == wanted
    assert shipped.shard_of(key) == wanted


def test_keys_cannot_be_mapped_to_shards_that_share_or_lack_a_journal() -> None:
    """There would be two answers to a question, or none: said on the driver."""
    routes = [route("one", "a"), route("two", "a", "b")]

    with pytest.raises(ValidationError, match=r"journals\[0\]: .* read a, found one, two"):
        key_mapping_of("modulo", routes)
    with pytest.raises(ValidationError, match=r"journals\[1\]: .* read c, found none"):
        key_mapping_of("modulo", routes, journals=["b", "c"])
    with pytest.raises(ValidationError, match="mapping: expected modulo or rendezvous"):
        key_mapping_of("random", routes)
    assert key_mapping_of("modulo", routes, journals=["b"]).shard_of("any") == "two"


@given(st.lists(st.tuples(st.integers(1, 9), ENDPOINTS, st.booleans()), min_size=1, max_size=30))
def test_routes_never_go_back_and_are_believed_for_a_while_only(
    told: list[tuple[int, str, bool]],
) -> None:
    """Whatever members of different revisions tell, in whatever order, between doubts."""
    table = RouteTable()
    latest = 0
    for now, (revision, endpoint, doubt) in enumerate(told):
        table.learn([route("shard", revision=revision, endpoint=endpoint)], float(now))
        latest = max(latest, revision)
        known = table.known("shard")
        assert known is not None
        assert known.revision == latest
        if doubt:
            table.doubt("shard")
            assert table.believed("shard", float(now)) is None
        assert table.believed("shard", now + ROUTE_SECONDS) is None


SHARDS = [f"shard-{n}" for n in range(3)]


def _row(shard_id: str, endpoint: str) -> ListResponse.Shard:
    """A row of a member's table, as a watch tells it."""
    members = [ProcessSpec.ID(zone="z", suffix="m")]
    return ListResponse.Shard(
        spec=ShardSpec(id=shard_id),
        route=Route(members=members, endpoints=[endpoint], primary=0),
    )


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(SHARDS), ENDPOINTS),
            st.sampled_from(["changes", "again", "torn"]),
            st.sampled_from(["", *SHARDS]),
        ),
        max_size=20,
    )
)
def test_watched_routes_are_those_of_the_member(
    told: list[tuple[dict[str, str], str, str]],
) -> None:
    """Plan: a member's table changes, and a watch tells the changes, or the whole table, or loses its call within the
    latter. What is believed long after is what the member last told, never what was removed or doubted since.
    """
    table = RouteTable()
    truth = dict.fromkeys(SHARDS, "http://driver:1")
    doubted: set[str] = set()
    listed = [route(shard_id, endpoint=endpoint) for shard_id, endpoint in truth.items()]
    assert table.watch_from(listed, 1, 0.0) == 1
    now, revision, position = 0.0, 1, 1
    for changes, how, doubt in told:
        now, revision = now + ROUTE_SECONDS, revision + 1
        response = WatchShardsResponse(reset=how != "changes", more=how == "torn")
        response.header.etcd.revision = revision
        if how == "changes":
            truth.update(changes)
        else:
            truth = dict(changes)
        response.shards.extend(_row(each, endpoint) for each, endpoint in changes.items())
        table.follow(response, now)
        doubted -= changes.keys()
        if how == "torn":
            # The next call begins where the former state was complete, and tells all of it again.
            assert table.watch_from(listed, 1, now) == position
            response.more = False
            table.follow(response, now)
        position = revision
        if doubt:
            table.doubt(doubt)
            doubted.add(doubt)

        later = now + ROUTE_SECONDS - 1
        found = {each: table.believed(each, later) for each in SHARDS}
        assert {each: one.endpoint for each, one in found.items() if one} == {
            each: endpoint for each, endpoint in truth.items() if each not in doubted
        }
        assert all(table.believed(each, now + ROUTE_SECONDS) is None for each in SHARDS)


def test_shard_is_told_of_its_own_journals_and_of_those_that_no_other_shard_reads() -> None:
    """A token for all shards may name thousands of journals, and metadata hold 4 KiB. What no shard reads may be a name
    that only the application knows.
    """
    routes = (route("one", "a"), route("two", "b", "c"), route("three", "a", "b"))
    plan = ResolverPlan(
        cluster="",
        revision=1,
        seeds=(),
        routes=routes,
        key_mapping=None,
        deadline_seconds=1.0,
        access=MemberAccess(),
        capability=8,
    )
    token = {"a": 1, "b": 2, "c": 3, "own name": 4}

    told = [sorted(plan.relevant(token, one)) for one in routes]

    assert told == [["a", "own name"], ["b", "c", "own name"], ["a", "b", "own name"]]


OUTCOMES = st.one_of(
    st.builds(lambda cause: Moved(cause), st.text(max_size=5)),
    st.builds(
        lambda endpoint, revision: Moved(
            "moved",
            Header(
                etcd=Header.Etcd(revision=revision),
                route=Route(
                    members=[ProcessSpec.ID(zone="z", suffix="m")], endpoints=[endpoint], primary=0
                ),
            ),
        ),
        ENDPOINTS,
        st.integers(1, 9),
    ),
    st.builds(lambda: Questioned("not found", ValueError("as told"))),
)


@given(st.lists(st.tuples(OUTCOMES, ENDPOINTS, ENDPOINTS), min_size=1, max_size=40))
def test_no_history_of_refusals_makes_a_call_rush(
    met: list[tuple[Moved | Questioned, str, str]],
) -> None:
    """Members that send a call around in circles: it pauses after a few steps; the error names whom it asked last, and
    not more than it should.
    """
    call = CallHistory("shard", "/app/Count", seconds=1.0)
    rushed = 0
    for outcome, asked, found in met:
        route_asked = route("shard", revision=3, endpoint=asked)
        step = call.after(outcome, route_asked, confirmed=False)
        if isinstance(step, Confirm):
            step = call.confirmed(route_asked, route("shard", endpoint=found), step.error)
        if isinstance(step, Again):
            rushed = 0 if step.pause else rushed + 1
            assert rushed <= FOLLOWED_MAX
            assert step.pause or step.learned is not None

    error = call.too_late()
    assert len(error.asked) <= ASKED_MAX
    assert list(error.asked)[-1] == (met[-1][1] or "no member")
