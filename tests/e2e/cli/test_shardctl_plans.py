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

    assert refused.exit_code == 5
    assert "start them, then plan again" in refused.output


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--drain", "nobody"), 3, "MEMBER: there is no member nobody; there are zone-0#dev-0-"),
        (("--add", "local"), 2, "--add: expected ZONE:N"),
        (("--apply", "0123456789abcdef"), 5, "plan again"),
        (("--apply", "0123456789abcdef", "--drain", "local#x"), 2, "--apply: expected no other"),
    ],
)
def test_mistakes_in_plans_name_their_field(
    cluster: CounterCluster, arguments: tuple[str, ...], status: int, message: str
) -> None:
    """One line, the field, and what was expected."""
    result = cluster.shardctl("plan", *arguments)

    assert result.exit_code == status
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
    assert unknown.exit_code == 3
    assert "no-such-shard does not exist" in unknown.output


def test_description_of_a_shard_has_all_that_is_known(cluster: CounterCluster) -> None:
    """One command in place of five, as a table and as JSON; a shard that is not there is an error."""
    table = cluster.shardctl("shards", "describe", "counter/part-000")
    as_json = json.loads(
        cluster.shardctl("shards", "describe", "counter/part-000", "-o", "json").stdout
    )
    unknown = cluster.shardctl("shards", "describe", "no-such-shard")

    assert table.exit_code == 0, table.output
    for section in ("REPLICAS", "SOURCES", "MOVES"):
        assert f"\n{section}\n" in table.stdout
    assert as_json["state"] == as_json["replicas"][0]["state"] == "PRIMARY"
    assert [source["journal"] for source in as_json["sources"]] == ["counter/events/part-000"]
    assert as_json["sources"][0]["lag"] is not None
    assert as_json["moves"][-1]["member"]
    assert (as_json["troubles"], as_json["notes"]) == ([], [])
    assert "no-such-shard does not exist" in unknown.stderr


def test_description_tells_what_it_could_not_ask(cluster: CounterCluster) -> None:
    """Without a broker there are no write heads; all else is shown, with the reason."""
    told = cluster.shardctl(
        "shards", "describe", "counter/part-000", "--broker", "http://127.0.0.1:1"
    )

    assert told.exit_code == 0, told.output
    assert "note: sources cannot be shown: " in told.stdout
    assert "\nREPLICAS\n" in told.stdout


def test_description_of_a_journal_names_the_shards_that_use_it(cluster: CounterCluster) -> None:
    """Before a journal is deleted, one asks who reads it, and how much it holds."""
    table = cluster.shardctl("journals", "describe", "counter/events/part-000")
    described = cluster.shardctl("journals", "describe", "counter/events/part-000", "-o", "json")
    unknown = cluster.shardctl("journals", "describe", "no/such/journal")

    document = json.loads(described.stdout)
    assert table.exit_code == 0, table.output
    assert "counter/part-000" in table.stdout
    assert [(user["shard"], user["use"]) for user in document["shards"]] == [
        ("counter/part-000", "reads it")
    ]
    assert document["content"]["write_head"] >= document["content"]["begin"]
    assert "journal no/such/journal does not exist" in unknown.stderr
