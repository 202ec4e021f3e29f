"""What `shardctl doctor` makes of what it was told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broadsheet.allocator.etcd.api import Header
from broadsheet.allocator.etcd.client import EtcdStatus
from broadsheet.cli.doctor.findings import (
    ETCD_BYTES_MAX,
    KafkaFacts,
    KafkaTopic,
    ProcessAnswer,
    Severity,
    judge_answers,
    judge_certificate,
    judge_etcd,
    judge_kafka,
    judge_members,
    judge_shards,
)
from broadsheet.wire.allocation_pb2 import ClusterMember
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec

NOW = 1_000_000.0


def _etcd(*, errors: tuple[str, ...] = (), leader: int = 1, db_bytes: int = 1 << 20) -> EtcdStatus:
    return EtcdStatus(
        header=Header(cluster_id=1, member_id=1, revision=1, raft_term=1),
        version="3.5.17",
        db_bytes=db_bytes,
        leader_id=leader,
        errors=errors,
    )


def _answer(seconds: float | None, version: str = "1.0", kind: str = "member") -> ProcessAnswer:
    return ProcessAnswer(kind, "http://m:1", version, seconds, NOW, NOW + 2.0)


def _member(name: str, *, limit: int = 4, leads: bool = True, state: str = "") -> ClusterMember:
    return ClusterMember(
        id=name,
        shard_limit=limit,
        leads=leads,
        cordoned=state == "cordoned",
        exiting=state == "leaving",
    )


def _shard(*codes: ReplicaStatus.Code.ValueType, standbys: int = 0) -> ListResponse.Shard:
    return ListResponse.Shard(
        spec=ShardSpec(id="flights-000", hot_standbys=standbys),
        status=[ReplicaStatus(code=code) for code in codes],
    )


@pytest.mark.parametrize(
    ("status", "level", "text"),
    [
        (_etcd(), Severity.GOOD, "version 3.5.17"),
        (_etcd(errors=("alarm:NOSPACE",)), Severity.BAD, "alarm:NOSPACE"),
        (_etcd(leader=0), Severity.BAD, "no leader"),
        (_etcd(db_bytes=ETCD_BYTES_MAX + 1), Severity.DOUBTFUL, "stops writing at its quota"),
    ],
)
def test_etcd_tells_of_a_full_database_and_a_lost_majority(
    status: EtcdStatus, level: Severity, text: str
) -> None:
    """An etcd with an alarm answers reads as ever: only its status tells why nothing is written."""
    (finding,) = judge_etcd("e:1", status)

    assert finding.level is level
    assert text in finding.detail
    assert bool(finding.remedy) is (level is not Severity.GOOD)


@pytest.mark.parametrize(
    ("seconds", "skew"),
    [(NOW, 0.0), (NOW + 2.0, 0.0), (NOW + 5.0, 3.0), (NOW - 7.0, -7.0), (None, 0.0)],
)
def test_skew_is_what_the_way_of_an_answer_does_not_explain(
    seconds: float | None, skew: float
) -> None:
    """A slow answer is no wrong clock: only what is outside the time between question and answer is certain."""
    assert _answer(seconds).skew_seconds == pytest.approx(skew)


def test_wrong_clocks_and_mixed_versions_are_told() -> None:
    """The clock of one machine, and a rollout that stopped half way, explain much that looks like a fault."""
    behind = judge_answers([_answer(NOW + 1.0), _answer(NOW - 90.0)])
    mixed = judge_answers([_answer(NOW), _answer(NOW), _answer(NOW, "1.1")])
    fine = judge_answers([_answer(NOW)])

    assert behind[0].level is Severity.DOUBTFUL
    assert behind[0].detail == (
        "member http://m:1 is at least 90.0 s behind, and 2.000 s more at most"
    )
    assert mixed[1].detail == "processes differ: 1.0 (2 members), 1.1 (1 member)"
    assert [each.level for each in fine] == [Severity.GOOD, Severity.GOOD]
    assert judge_answers([]) == []


def test_brokers_are_judged_beside_members() -> None:
    """A broker that was forgotten in a rollout is told; Gazette's brokers, which tell nothing, are no finding."""
    forgotten = judge_answers([_answer(NOW), _answer(NOW + 8.0, "0.9", "broker")])
    foreign = judge_answers([_answer(NOW), _answer(None, "", "broker")])

    assert [each.level for each in forgotten] == [Severity.DOUBTFUL, Severity.DOUBTFUL]
    assert "broker http://m:1 is at least 6.0 s ahead" in forgotten[0].detail
    assert forgotten[1].detail == "processes differ: 1.0 (1 member), 0.9 (1 broker)"
    assert [each.level for each in foreign] == [Severity.GOOD, Severity.GOOD]
    assert foreign[1].detail == "1.0 (1 member)"


@pytest.mark.parametrize(
    ("members", "shards", "level", "text"),
    [
        ([], [], Severity.BAD, "there are none"),
        ([_member("a#1")], [_shard()], Severity.GOOD, "1 member, room for 4 replicas, 1 wanted"),
        ([_member("a#1", leads=False)], [], Severity.BAD, "none leads"),
        ([_member("a#1", limit=0)], [_shard()], Severity.BAD, "take 0 replicas, and shards want 1"),
        ([_member("a#1", state="cordoned")], [], Severity.DOUBTFUL, "a#1 cordoned"),
        ([_member("a#1", state="leaving")], [], Severity.DOUBTFUL, "a#1 leaving"),
        ([_member("a#1")], [_shard(standbys=1)], Severity.DOUBTFUL, "all are in zone a"),
        ([_member("a#1"), _member("b#1")], [_shard(standbys=1)], Severity.GOOD, "2 members"),
    ],
)
def test_members_lead_and_have_room(
    members: list[ClusterMember], shards: list[ListResponse.Shard], level: Severity, text: str
) -> None:
    """Nothing is placed without a leader or room, and standbys in one zone are none if that falls."""
    (finding,) = judge_members(members, shards)

    assert finding.level is level
    assert text in finding.detail


def test_shards_are_counted_by_state_and_the_worst_are_named() -> None:
    """Ten thousand shards in a line: the first of those that fail is what to explain next."""
    failed, serving = _shard(ReplicaStatus.FAILED), _shard(ReplicaStatus.PRIMARY)
    starting = _shard(ReplicaStatus.BACKFILL)

    found = judge_shards([failed] * 5 + [serving, _shard(), starting])

    assert [(each.level, each.detail) for each in found] == [
        (Severity.BAD, "5 shards FAILED: flights-000, flights-000, flights-000 and 2 more"),
        (Severity.BAD, "1 shard UNASSIGNED: flights-000"),
        (Severity.DOUBTFUL, "1 shard still starting: flights-000"),
    ]
    assert found[0].remedy == "shardctl explain flights-000"
    assert judge_shards([serving])[0].detail == "1 PRIMARY"
    assert judge_shards([])[0].detail == "there are none"


@pytest.mark.parametrize(
    ("days", "level"),
    [(-1, Severity.BAD), (0, Severity.BAD), (5, Severity.DOUBTFUL), (90, Severity.GOOD)],
)
def test_certificates_are_named_before_they_end(days: int, level: Severity) -> None:
    """A certificate that ended is an outage of everything at once; a fortnight is enough to renew it."""
    now = datetime(2026, 1, 2, tzinfo=UTC)

    assert judge_certificate("x", now + timedelta(days=days), now).level is level


def _kafka(**facts: Any) -> KafkaFacts:
    fine: dict[str, Any] = {
        "servers": "k:9092",
        "checkpoints": KafkaTopic("broadsheet-checkpoints", 1, "compact"),
        "topics": [KafkaTopic("orders", 3, "delete", 1_000)],
        "markers": {"/root/orders": 5},
        "without_marker": [],
        "retention_seconds": 7 * 86_400.0,
        "transaction_ms_max": 900_000,
    }
    return KafkaFacts(**(fine | facts))


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        ({}, Severity.GOOD, "1 topic, 1 shard with a marker"),
        ({"topics": [KafkaTopic("orders", None)]}, Severity.BAD, "no topic orders"),
        ({"topics": [KafkaTopic("orders", 1)]}, Severity.DOUBTFUL, "not told"),
        ({"retention_seconds": 60.0}, Severity.DOUBTFUL, "0:01:00"),
        ({"transaction_ms_max": 5_000}, Severity.BAD, "5000 ms at most"),
        ({"without_marker": ["a", "b", "c", "d"]}, Severity.DOUBTFUL, "a, b, c and 1 more"),
        ({"checkpoints": KafkaTopic("c", 1, "delete")}, Severity.BAD, "deleted by age"),
        ({"checkpoints": KafkaTopic("c", None)}, Severity.DOUBTFUL, "creates it"),
    ],
)
def test_kafka_that_would_forget_or_refuse_is_told_before_it_does(
    facts: dict[str, Any], level: Severity, text: str
) -> None:
    """Each of these shows only days later, or in the midst of a fail-over."""
    (finding,) = judge_kafka(_kafka(**facts), 10.0)

    assert finding.level is level
    assert text in finding.detail
