"""`shardctl plan` and `explain` against a running `shardctl dev`."""

from __future__ import annotations

import json

import pytest

from tests.support.counter_cluster import CounterCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_plan_of_a_drain_says_what_would_move_and_moves_nothing(cluster: CounterCluster) -> None:
    """A table for people, and the same as JSON: what the leaving member holds goes to others; nothing has moved."""
    before = cluster.shardctl("shards", "list", "-o", "json").output
    present = cluster.shardctl("plan")
    leader = json.loads(cluster.shardctl("plan", "-o", "json").output)["leader"]
    change = ("plan", "--drain", leader, "--add", "local:1")

    table = cluster.shardctl(*change)
    as_json = json.loads(cluster.shardctl(*change, "-o", "json").output)

    assert "to carry it out: shardctl plan --apply" in present.output
    assert table.exit_code == 0, table.output
    removed = [c for c in as_json["changes"] if c["kind"] == "CHANGE_KIND_REMOVE"]
    assert {change["member"] for change in removed} == {leader}
    assert all(change["shard"] in table.output for change in removed)
    after = cluster.shardctl("shards", "list", "-o", "json").output
    assert json.loads(after)["shards"] == json.loads(before)["shards"]


def test_plan_with_members_to_come_cannot_be_applied(cluster: CounterCluster) -> None:
    """Looking ahead is allowed; carrying it out is refused with what to do."""
    made = json.loads(cluster.shardctl("plan", "--add", "local:2", "-o", "json").output)
    assert not made["can_be_applied"]

    refused = cluster.shardctl("plan", "--apply", made["plan_id"])

    assert refused.exit_code == 1
    assert "start them, then plan again" in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--drain", "nobody"), "drain[0]: expected zone#suffix"),
        (("--drain", "local#nobody"), "drain[0]: expected a member"),
        (("--add", "local"), "--add: expected ZONE:N"),
        (("--apply", "0123456789abcdef"), "plan again"),
        (("--apply", "0123456789abcdef", "--drain", "local#x"), "--apply: expected no other"),
    ],
)
def test_mistakes_in_plans_name_their_field(
    cluster: CounterCluster, arguments: tuple[str, ...], message: str
) -> None:
    """One line, the field, and what was expected."""
    result = cluster.shardctl("plan", *arguments)

    assert result.exit_code == 1
    assert message in result.output


def test_explanation_tells_where_a_shard_is_and_why(cluster: CounterCluster) -> None:
    """A shard at rest: its replica, that it stays, that nothing waits; the same as JSON; an unknown one is an error."""
    listed = json.loads(cluster.shardctl("shards", "list", "-o", "json").output)["shards"]
    shard_id = listed[0]["spec"]["id"]

    table = cluster.shardctl("explain", shard_id)
    as_json = json.loads(cluster.shardctl("explain", shard_id, "-o", "json").output)
    unknown = cluster.shardctl("explain", "no-such-shard")

    assert "nothing waits" in table.output
    assert [replica["slot"] for replica in as_json["replicas"]] == [0]
    assert as_json["replicas"][0]["member"] in table.output
    assert unknown.exit_code == 1
    assert "no-such-shard does not exist" in unknown.output
