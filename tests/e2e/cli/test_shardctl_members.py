"""`shardctl members` against a running `shardctl dev`."""

from __future__ import annotations

import json

import pytest

from tests.support.counter_cluster import CounterCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_members_are_listed_cordoned_and_uncordoned(cluster: CounterCluster) -> None:
    """A table for people and JSON for programs show the same; what is done twice says that it was done before."""
    listed = json.loads(cluster.shardctl("members", "list", "-o", "json").output)["members"]
    assert sum(member["leads"] for member in listed) == 1
    chosen = listed[0]["id"]
    try:
        done = cluster.shardctl("members", "cordon", chosen)
        again = cluster.shardctl("members", "cordon", chosen)
        table = cluster.shardctl("members", "list").output.splitlines()

        assert done.output == f"{chosen} cordoned\n"
        assert again.output == "1 member unchanged: already cordoned\n"
        assert table[0].split()[:3] == ["MEMBER", "STATE", "REPLICAS"]
        states = {line.split()[0]: line.split()[1] for line in table[1:]}
        assert states == {
            member["id"]: "cordoned" if member["id"] == chosen else "ready" for member in listed
        }
    finally:
        undone = cluster.shardctl("members", "uncordon", chosen)
    assert undone.output == f"{chosen} uncordoned\n"


def test_cordon_of_nobody_names_what_was_expected(cluster: CounterCluster) -> None:
    """A name that is mistyped is one line that says which, and the exit code tells a script."""
    refused = cluster.shardctl("members", "cordon", "local#nobody")

    assert refused.exit_code == 1
    assert "members[0]: expected a member of the cluster" in refused.output


def test_drained_member_hands_over_and_leaves(cluster: CounterCluster) -> None:
    """The plan is shown first; a script must say --yes; the command ends when the member has left, and its shards are
    served by the other. `shardctl dev` starts it again.
    """
    listed = json.loads(cluster.shardctl("members", "list", "-o", "json").output)["members"]
    (chosen,) = [each["id"] for each in listed if each["endpoint"] == cluster.addresses[0]]

    dry = cluster.shardctl("members", "drain", chosen, "--dry-run")
    unasked = cluster.shardctl("members", "drain", chosen)
    unknown = cluster.shardctl("members", "drain", "local#nobody", "--yes")
    assert json.loads(cluster.shardctl("members", "list", "-o", "json").output)["members"] == listed
    drained = cluster.shardctl("members", "drain", chosen, "--yes", "--timeout", "300")
    served = cluster.shardctl("shards", "wait", "-l", "app=counter", "--for=primary")

    assert "nothing was changed" in dry.stderr
    assert (unasked.exit_code, unknown.exit_code) == (2, 1)
    assert "drain[0]: expected a member" in unknown.stderr
    assert drained.exit_code == 0, drained.output
    assert drained.stdout.endswith(f"{chosen} draining\n{chosen} left\n")
    assert served.exit_code == 0, served.output
