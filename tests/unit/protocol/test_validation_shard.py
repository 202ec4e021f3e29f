"""Each rule of the shard service's messages: one broken field, one error that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import (
    journal_pb2,
    recorded_op_pb2,
    shard_pb2 as pb,
    validation_shard as answers,
    validation_shard as rules,
)
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, label_set


def _shard_spec() -> pb.ShardSpec:
    return pb.ShardSpec(
        id="flights-000",
        sources=[
            pb.ShardSpec.Source(journal="flights/part-000"),
            pb.ShardSpec.Source(journal="flights/part-001;meta", min_offset=5),
        ],
        recovery_log_prefix="recovery",
        hint_prefix="/hints",
        hint_backups=2,
        max_txn_duration=Duration(seconds=1),
        labels=label_set({"app": "flights"}),
    )


def _header() -> journal_pb2.Header:
    return journal_pb2.Header(
        route=journal_pb2.Route(primary=-1),
        etcd=journal_pb2.Header.Etcd(cluster_id=1, member_id=2, revision=3, raft_term=4),
    )


def _hints(**changes: object) -> recorded_op_pb2.FSMHints:
    segment = recorded_op_pb2.Segment(author=7, first_seq_no=1, last_seq_no=2, last_offset=9)
    for name, value in changes.items():
        setattr(segment, name, value)
    node = recorded_op_pb2.FnodeSegments(fnode=1, segments=[segment])
    return recorded_op_pb2.FSMHints(log="recovery/log", live_nodes=[node])


def _refused(path: str, check: Callable[[], None]) -> None:
    with pytest.raises(ValidationError) as raised:
        check()
    assert raised.value.field_path == path
    assert "expected" in raised.value.problem


def _set(name: str, value: object) -> Callable[[pb.ShardSpec], None]:
    return lambda spec: setattr(spec, name, value)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("id", _set("id", "abc")),
        ("id", _set("id", "a" * 513)),
        ("id", _set("id", "flights#000")),
        ("id", _set("id", "flights=000")),
        ("recovery_log_prefix", _set("recovery_log_prefix", "/absolute")),
        ("recovery_log_prefix", _set("recovery_log_prefix", "a//b")),
        ("hint_prefix", _set("recovery_log_prefix", "")),
        ("hint_prefix", _set("hint_prefix", "")),
        ("hint_prefix", _set("hint_prefix", "hints")),
        ("hint_prefix", _set("hint_prefix", "/hints/")),
        ("hint_prefix", _set("hint_prefix", "/hints/../x")),
        ("hint_prefix", _set("hint_prefix", "/")),
        ("hint_backups", _set("hint_backups", -1)),
        ("min_txn_duration", lambda spec: spec.min_txn_duration.CopyFrom(Duration(seconds=-1))),
        ("max_txn_duration", lambda spec: spec.ClearField("max_txn_duration")),
        ("labels.labels[0].name", lambda spec: spec.labels.CopyFrom(label_set(("x", "y")))),
        ("labels", lambda spec: spec.labels.CopyFrom(label_set(("id", "")))),
        (
            "labels",
            lambda spec: spec.labels.CopyFrom(
                label_set(("app.gazette.dev/region", "a"), ("app.gazette.dev/region", "b"))
            ),
        ),
        ("sources[1].journal", lambda spec: setattr(spec.sources[1], "journal", "x")),
        ("sources[1].journal.meta", lambda spec: setattr(spec.sources[1], "journal", "abcd;")),
        ("sources[1].min_offset", lambda spec: setattr(spec.sources[1], "min_offset", -1)),
        (
            "sources[1].journal",
            lambda spec: setattr(spec.sources[1], "journal", "flights/part-000"),
        ),
        ("sources[1].journal", lambda spec: spec.sources.reverse()),
    ],
)
def test_shard_spec_with_one_broken_field_names_it(
    path: str, change: Callable[[pb.ShardSpec], None]
) -> None:
    """A YAML file with a mistake is refused by the mistake's path."""
    spec = _shard_spec()
    rules.validate_shard_spec(spec)

    change(spec)

    _refused(path, lambda: rules.validate_shard_spec(spec))


def test_shard_spec_without_sources_and_recovery_log_passes() -> None:
    """Shards may bring their own messages and keep state elsewhere; their ids may start with a slash."""
    rules.validate_shard_spec(
        pb.ShardSpec(id="/my//shard/", max_txn_duration=Duration(seconds=1), disable=True)
    )


@pytest.mark.parametrize("source", ["flights/raw", "flights/raw;meta"])
def test_dead_letters_must_not_come_back(source: str) -> None:
    """A shard that reads its own dead letters fails at them, and writes another, for ever."""
    spec = pb.ShardSpec(id="shard-1", labels=label_set({DEAD_LETTER_JOURNAL: "flights/raw"}))
    spec.max_txn_duration.FromSeconds(1)
    spec.sources.add(journal="flights/other")
    rules.validate_shard_spec(spec)

    spec.sources.add(journal=source)

    with pytest.raises(ValidationError, match="expected a journal that is no source") as raised:
        rules.validate_shard_spec(spec)
    assert raised.value.field_path == f"labels[{DEAD_LETTER_JOURNAL}]"


@pytest.mark.parametrize(
    ("path", "zone", "suffix", "endpoint"),
    [
        ("process_spec.id.zone", "", "member", "http://h:1"),
        ("process_spec.id.zone", "z" * 33, "member", "http://h:1"),
        ("process_spec.id.zone", "a#b", "member", "http://h:1"),
        ("process_spec.id.suffix", "zone", "abc", "http://h:1"),
        ("process_spec.endpoint", "zone", "member", ""),
        ("process_spec.endpoint", "zone", "member", "h:1"),
    ],
)
def test_consumer_spec_with_one_broken_field_names_it(
    path: str, zone: str, suffix: str, endpoint: str
) -> None:
    """A member that cannot be dialled or keyed must not announce itself."""
    process = journal_pb2.ProcessSpec(
        id=journal_pb2.ProcessSpec.ID(zone=zone, suffix=suffix), endpoint=endpoint
    )

    _refused(path, lambda: rules.validate_consumer_spec(pb.ConsumerSpec(process_spec=process)))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("code", pb.ReplicaStatus(code=1)),  # type: ignore[arg-type]  # unknown on purpose
        ("errors", pb.ReplicaStatus(code=pb.ReplicaStatus.FAILED)),
        ("errors", pb.ReplicaStatus(code=pb.ReplicaStatus.PRIMARY, errors=["oops"])),
    ],
)
def test_replica_status_that_contradicts_itself_is_refused(
    path: str, status: pb.ReplicaStatus
) -> None:
    """Errors stand beside FAILED and nowhere else."""
    rules.validate_replica_status(pb.ReplicaStatus(code=pb.ReplicaStatus.FAILED, errors=["oops"]))

    _refused(path, lambda: rules.validate_replica_status(status))


def test_requests_with_one_broken_field_name_it() -> None:
    """Stat, List, GetHints and Unassign carry little, and each part of it is checked."""
    _refused("shard", lambda: rules.validate_stat_request(pb.StatRequest()))
    _refused(
        "read_through[abcd]",
        lambda: rules.validate_stat_request(
            pb.StatRequest(shard="abcd", read_through={"abcd": -1})
        ),
    )
    _refused(
        "read_through[x]",
        lambda: rules.validate_stat_request(pb.StatRequest(shard="abcd", read_through={"x": 1})),
    )
    _refused(
        "header.etcd.cluster_id",
        lambda: rules.validate_stat_request(
            pb.StatRequest(
                shard="abcd", header=journal_pb2.Header(route=journal_pb2.Route(primary=-1))
            )
        ),
    )
    _refused(
        "selector.exclude.labels[0].name",
        lambda: rules.validate_list_request(
            pb.ListRequest(selector=journal_pb2.LabelSelector(exclude=label_set(("x", ""))))
        ),
    )
    _refused("shard", lambda: rules.validate_hints_request(pb.GetHintsRequest(shard="x")))
    _refused(
        "shards[1]",
        lambda: rules.validate_unassign_request(pb.UnassignRequest(shards=["abcd", "x"])),
    )


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("changes[0]", pb.ApplyRequest.Change()),
        ("changes[0]", pb.ApplyRequest.Change(upsert=_shard_spec(), delete="abcd")),
        ("changes[0].upsert.id", pb.ApplyRequest.Change(upsert=pb.ShardSpec())),
        ("changes[0].delete", pb.ApplyRequest.Change(delete="x", expect_mod_revision=1)),
        ("changes[0].expect_mod_revision", pb.ApplyRequest.Change(delete="abcd")),
        (
            "changes[0].expect_mod_revision",
            pb.ApplyRequest.Change(upsert=_shard_spec(), expect_mod_revision=-2),
        ),
        (
            "changes[0].primary_hints",
            pb.ApplyRequest.Change(delete="abcd", expect_mod_revision=1, primary_hints=_hints()),
        ),
        (
            "changes[0].primary_hints.live_nodes[0].segments[0].author",
            pb.ApplyRequest.Change(upsert=_shard_spec(), primary_hints=_hints(author=0)),
        ),
    ],
)
def test_apply_request_with_one_broken_change_names_it(
    path: str, change: pb.ApplyRequest.Change
) -> None:
    """In a batch of many changes the message says which."""
    _refused(path, lambda: rules.validate_shard_apply_request(pb.ApplyRequest(changes=[change])))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("log", "recovery/log"),
        ("log", "x"),
        ("first_seq_no", 0),
        ("first_offset", -1),
        ("last_seq_no", 0),
        ("last_offset", -1),
    ],
)
def test_hints_with_one_broken_segment_name_it(field: str, value: object) -> None:
    """Hints steer what a player reads; broken ones must not reach it."""
    rules.validate_hints(_hints())
    rules.validate_hints(_hints(log="recovery/elsewhere"))

    _refused(
        f"live_nodes[0].segments[0].{field}", lambda: rules.validate_hints(_hints(**{field: value}))
    )


def test_shard_listing_has_one_status_a_member() -> None:
    """Statuses are parallel to the route's members, or nobody can tell whose they are."""
    shard = pb.ListResponse.Shard(
        spec=_shard_spec(), mod_revision=1, route=journal_pb2.Route(primary=-1)
    )
    response = pb.ListResponse(header=_header(), shards=[shard])
    answers.validate_shard_list_response(response)

    response.shards[0].status.add()
    _refused("shards[0].status", lambda: answers.validate_shard_list_response(response))
    response.shards[0].spec.id = ""
    _refused("shards[0].spec.id", lambda: answers.validate_shard_list_response(response))


def test_shard_answers_with_one_broken_field_name_it() -> None:
    """A member that answers nonsense is not believed."""
    _refused("header", lambda: answers.validate_stat_response(pb.StatResponse()))
    unrouted = pb.StatResponse(header=journal_pb2.Header())
    _refused("header.route.primary", lambda: answers.validate_stat_response(unrouted))
    _refused(
        "publish_at[abcd]",
        lambda: answers.validate_stat_response(
            pb.StatResponse(header=_header(), publish_at={"abcd": -1})
        ),
    )
    _refused(
        "status",
        lambda: answers.validate_shard_apply_response(pb.ApplyResponse(status=77)),  # type: ignore[arg-type]  # unknown on purpose
    )
    _refused(
        "backup_hints[0].hints.live_nodes[0].segments[0].author",
        lambda: answers.validate_hints_response(
            pb.GetHintsResponse(
                backup_hints=[pb.GetHintsResponse.ResponseHints(hints=_hints(author=0))]
            )
        ),
    )
    _refused(
        "status",
        lambda: answers.validate_unassign_response(pb.UnassignResponse(status=77)),  # type: ignore[arg-type]  # unknown on purpose
    )
