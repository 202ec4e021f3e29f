"""What a wait is for."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from broadsheet.cli.main import main
from broadsheet.cli.shards.wait import WaitCondition
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec

PRIMARY = ReplicaStatus(code=ReplicaStatus.PRIMARY)
CUT_OFF = ReplicaStatus(code=ReplicaStatus.PRIMARY, unavailable="the broker is silent")
STANDBY = ReplicaStatus(code=ReplicaStatus.STANDBY)
BACKFILL = ReplicaStatus(code=ReplicaStatus.BACKFILL)


def _listed(*statuses: ReplicaStatus, standbys: int = 0, refused: str = "") -> ListResponse.Shard:
    return ListResponse.Shard(
        spec=ShardSpec(id="flights-000", hot_standbys=standbys),
        status=statuses,
        standbys_refused=refused,
    )


@pytest.mark.parametrize(
    ("condition", "listed", "unmet"),
    [
        ("primary", _listed(PRIMARY), ""),
        ("primary", _listed(STANDBY), "flights-000 is STANDBY"),
        ("primary", _listed(), "flights-000 is UNASSIGNED"),
        ("primary", _listed(CUT_OFF), "flights-000 is UNAVAILABLE"),
        ("standby", _listed(PRIMARY, STANDBY, standbys=1), ""),
        ("standby", _listed(STANDBY, BACKFILL, standbys=1), "flights-000 is STANDBY"),
        ("standby", _listed(PRIMARY, BACKFILL, standbys=1), "flights-000 has 0 of 1 standbys"),
        ("standby", _listed(PRIMARY, STANDBY, standbys=5), "flights-000 has 1 of 5 standbys"),
        ("standby", _listed(PRIMARY, STANDBY, standbys=5, refused="capped to 1"), ""),
        (
            "standby",
            _listed(PRIMARY, standbys=5, refused="capped"),
            "flights-000 has 0 of 1 standbys",
        ),
        ("deleted", _listed(PRIMARY), "flights-000 is there"),
    ],
)
def test_condition_holds_or_says_what_is_missing(
    condition: str, listed: ListResponse.Shard, unmet: str
) -> None:
    """Somebody whose wait was too long reads what was missing."""
    assert WaitCondition(condition).unmet(listed) == unmet


def test_shard_is_paused_once_no_member_has_it() -> None:
    """Until then its last transaction may still be on its way."""
    spec = ShardSpec(id="flights-000", disable=True)
    serving = ListResponse.Shard(spec=spec, status=[PRIMARY])
    assert WaitCondition("paused").unmet(serving) == "flights-000 has 1 replica"
    assert WaitCondition("paused").unmet(ListResponse.Shard(spec=spec)) == ""


@pytest.mark.parametrize(
    ("condition", "spec"),
    [
        ("primary", ShardSpec(id="flights-000", disable=True)),
        ("standby", ShardSpec(id="flights-000")),
        ("paused", ShardSpec(id="flights-000")),
    ],
)
def test_wait_for_what_a_spec_rules_out_is_refused(condition: str, spec: ShardSpec) -> None:
    """It would only end by its timeout, and look like a fault of the cluster."""
    with pytest.raises(ValidationError, match="--for: flights-000"):
        WaitCondition(condition).unmet(ListResponse.Shard(spec=spec, status=[PRIMARY]))


@pytest.mark.parametrize("text", ["ready", "lag", "lag<", "lag<x", "lag<0", "primary<1", "lag<-1"])
def test_condition_that_is_none_is_a_usage_error(text: str) -> None:
    """A typo ends with the list of what can be waited for."""
    result = CliRunner().invoke(main, ["shards", "wait", "flights-000", f"--for={text}"])

    assert result.exit_code == click.UsageError.exit_code
    assert "expected primary, standby, paused, deleted or lag<BYTES" in result.stderr
