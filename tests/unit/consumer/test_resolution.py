"""Who answers for a shard: every row of the resolver's table, on snapshots."""

from __future__ import annotations

import pytest

from broadsheet.allocator.model import Assignment
from broadsheet.consumer.registry.key_space import process_id_of
from broadsheet.consumer.resolver.decision import (
    Answered,
    AwaitRevision,
    Forward,
    ForwardRefused,
    ResolveQuestion,
    ResolverSnapshot,
    ServeHere,
    decide,
    header_of,
)
from broadsheet.wire.journal_pb2 import Header, LabelSelector, ProcessSpec, Route
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import Status
from tests.support.key_space_values import (
    CLUSTER_ID,
    assignment,
    etcd_header,
    item,
    key_space,
    member_id,
    shard_spec,
)

SHARD = "shard-1"
SPEC = shard_spec(SHARD, env="prod")
PRIMARY_HERE = (assignment(SHARD, "here", 0), assignment(SHARD, "there", 1))
PRIMARY_THERE = (assignment(SHARD, "here", 1), assignment(SHARD, "there", 0))
NO_PRIMARY = (assignment(SHARD, "here", 1),)


def snapshot(
    replicas: tuple[Assignment, ...] = (), *, known: bool = True, announced: bool = True
) -> ResolverSnapshot:
    """What member `here` knows at revision 10."""
    values = key_space(
        items=[item(SPEC)] if known else [], members=["here", "there"], replicas=replicas
    )
    return ResolverSnapshot(
        local_id=member_id("here") if announced else None,
        etcd=etcd_header(10),
        item=values.items.get(item(SPEC).item_id),
        assignments=values.assignments_of(item(SPEC).item_id),
        members=values.members,
    )


def question(
    *,
    may_proxy: bool = False,
    proxy_header: Header | None = None,
    allowed: LabelSelector | None = None,
) -> ResolveQuestion:
    """A question for the shard."""
    return ResolveQuestion(
        shard_id=SHARD,
        selector=allowed or LabelSelector(),
        may_proxy=may_proxy,
        proxy_header=proxy_header,
    )


def proxied(*, to: str | None = "here", cluster_id: int = CLUSTER_ID, revision: int = 10) -> Header:
    """The header of a request that another process forwarded."""
    return Header(
        process_id=process_id_of(member_id(to)) if to else ProcessSpec.ID(),
        route=Route(primary=-1),
        etcd=Header.Etcd(cluster_id=cluster_id, member_id=1, revision=revision, raft_term=1),
    )


ROUTE_HERE = Route(
    members=[process_id_of(member_id("here")), process_id_of(member_id("there"))],
    primary=0,
    endpoints=["http://here:1", "http://there:1"],
)


def test_decide_local_primary_serves_here() -> None:
    """The header names us, and the route all replicas with their endpoints."""
    decision = decide(question(), snapshot(PRIMARY_HERE))

    assert decision == ServeHere(header_of(member_id("here"), etcd_header(10), ROUTE_HERE), SPEC)


def test_decide_remote_primary_may_proxy_forwards_to_it() -> None:
    """The header's process is the primary: whoever forwards sends it along as the address."""
    decision = decide(question(may_proxy=True), snapshot(PRIMARY_THERE))

    assert isinstance(decision, Forward)
    assert decision.header.process_id == process_id_of(member_id("there"))
    assert decision.header.route.primary == 1


@pytest.mark.parametrize(
    ("replicas", "known", "status"),
    [
        pytest.param(PRIMARY_THERE, True, Status.NOT_SHARD_PRIMARY, id="remote-no-proxy"),
        pytest.param(NO_PRIMARY, True, Status.NO_SHARD_PRIMARY, id="standby-only"),
        pytest.param((), True, Status.NO_SHARD_PRIMARY, id="unassigned"),
        pytest.param((), False, Status.SHARD_NOT_FOUND, id="unknown"),
    ],
)
def test_decide_not_served_answers_with_status_and_own_identity(
    replicas: tuple[Assignment, ...], known: bool, status: Status.ValueType
) -> None:
    """An answer is from us, whatever it says; the spec is part of it wherever there is one."""
    decision = decide(question(), snapshot(replicas, known=known))

    assert isinstance(decision, Answered)
    assert decision.status == status
    assert decision.header.process_id == process_id_of(member_id("here"))
    assert decision.spec == (SPEC if known else None)


def test_decide_deleted_shard_with_replicas_left_shows_their_route() -> None:
    """A shard whose spec is gone is not found, but the replicas still to be reaped are listed."""
    decision = decide(question(), snapshot(PRIMARY_HERE, known=False))

    assert isinstance(decision, Answered)
    assert decision.status == Status.SHARD_NOT_FOUND
    assert decision.header.route == ROUTE_HERE


def test_decide_hidden_shard_looks_like_none() -> None:
    """Claims that do not pick the shard hide it and its route: the answer is that of an unknown shard."""
    other = selector(label_set(("env", "dev")))

    hidden = decide(question(allowed=other), snapshot(PRIMARY_HERE))
    unknown = decide(question(allowed=other), snapshot((), known=False))

    assert hidden == unknown
    assert isinstance(hidden, Answered)
    assert hidden.status == Status.SHARD_NOT_FOUND
    assert hidden.header.route == Route(primary=-1)


@pytest.mark.parametrize("allowed", [("env", "prod"), ("id", SHARD)])
def test_decide_claims_match_labels_and_id(allowed: tuple[str, str]) -> None:
    """A selector may pick a shard by its labels or by the meta-label `id`."""
    decision = decide(question(allowed=selector(label_set(allowed))), snapshot(PRIMARY_HERE))

    assert isinstance(decision, ServeHere)


def test_decide_without_own_member_key_never_serves_here() -> None:
    """A process that is leaving has no identity: it forwards, and never takes itself for the primary."""
    alone = snapshot(PRIMARY_HERE, announced=False)

    assert isinstance(decide(question(may_proxy=True), alone), Forward)
    answer = decide(question(), alone)
    assert isinstance(answer, Answered)
    assert answer.status == Status.NOT_SHARD_PRIMARY
    assert answer.header.process_id == ProcessSpec.ID()


def test_decide_proxied_from_later_revision_waits_for_it() -> None:
    """The forwarding process knew of our promotion before we do: we must see it before we decide."""
    decision = decide(question(proxy_header=proxied(revision=11)), snapshot(PRIMARY_THERE))

    assert decision == AwaitRevision(11)


def test_decide_proxied_at_known_revision_serves_here() -> None:
    """Once caught up, a forwarded request is served."""
    decision = decide(question(proxy_header=proxied(revision=10)), snapshot(PRIMARY_HERE))

    assert isinstance(decision, ServeHere)


def test_decide_proxied_to_anyone_is_accepted() -> None:
    """A header without a process means "whoever you are"."""
    decision = decide(question(proxy_header=proxied(to=None)), snapshot(PRIMARY_HERE))

    assert isinstance(decision, ServeHere)


@pytest.mark.parametrize(
    ("header", "announced", "field_path"),
    [
        pytest.param(proxied(cluster_id=9), True, "header.etcd.cluster_id", id="other-cluster"),
        pytest.param(proxied(to="there"), True, "header.process_id", id="other-process"),
        pytest.param(proxied(to="here"), False, "header.process_id", id="leaving"),
    ],
)
def test_decide_proxied_to_wrong_place_is_refused(
    header: Header, announced: bool, field_path: str
) -> None:
    """A misrouted request names the field that does not fit; it is never answered as if it were ours."""
    decision = decide(question(proxy_header=header), snapshot(PRIMARY_HERE, announced=announced))

    assert isinstance(decision, ForwardRefused)
    assert decision.problem.startswith(field_path)


def test_decide_wrong_cluster_is_noticed_before_waiting_for_its_revision() -> None:
    """Another cluster's revision may never come: the mismatch must win over the wait."""
    decision = decide(
        question(proxy_header=proxied(cluster_id=9, revision=99)), snapshot(PRIMARY_HERE)
    )

    assert isinstance(decision, ForwardRefused)


def test_decide_two_assignments_of_one_member_lists_it_once() -> None:
    """Illegal leftovers of one member must not make an invalid route; its lowest slot counts."""
    replicas = (assignment(SHARD, "here", 0), assignment(SHARD, "here", 2))

    decision = decide(question(), snapshot(replicas))

    assert isinstance(decision, ServeHere)
    assert len(decision.header.route.members) == 1


def test_decide_replica_of_dead_member_has_empty_endpoint() -> None:
    """A member may be gone a moment before its assignments."""
    decision = decide(question(may_proxy=True), snapshot((assignment(SHARD, "dead", 0),)))

    assert isinstance(decision, Forward)
    assert list(decision.header.route.endpoints) == [""]
