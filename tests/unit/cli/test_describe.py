"""What is wrong with a shard, as its replicas' statuses tell it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broadsheet.cli.shards.source_progress import SourceProgress
from broadsheet.cli.shards.state import status_of
from broadsheet.cli.shards.troubles import troubles_of
from broadsheet.consumer.errors import ShardHeldBackError
from broadsheet.consumer.shard.replica_status import failed_status
from broadsheet.consumer.shard.stall_detector import Stall
from broadsheet.consumer.shard.stall_watch import description
from broadsheet.wire.journal_pb2 import ProcessSpec, Route
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AT = "next at 2026-01-02T03:04:35+00:00"
RETRY = "shardctl shards unassign -l id=flights-000 --failed"


def _listed(*statuses: ReplicaStatus, primary: int = 0) -> ListResponse.Shard:
    members = [
        ProcessSpec.ID(zone="zone-a", suffix=f"member-{number}") for number in range(len(statuses))
    ]
    return ListResponse.Shard(
        spec=ShardSpec(id="flights-000"),
        route=Route(members=members, primary=primary if statuses else -1),
        status=statuses,
    )


@pytest.mark.parametrize(
    ("errors", "state", "tried", "then", "remedy"),
    [
        (
            ["ValueError: no", f"attempt 3 failed (application) at offset 30 of in/000; {AT}"],
            "FAILED",
            "attempt 3 failed (application) at offset 30 of in/000",
            "it is tried again at 2026-01-02T03:04:35+00:00 (in 30 s)",
            f"correct the code or the message, then: {RETRY}",
        ),
        (
            ["ValueError: no", f"attempt 12 failed (application); QUARANTINED; {AT}"],
            "QUARANTINED",
            "attempt 12 failed (application)",
            "it is tried again at 2026-01-02T03:04:35+00:00 (in 30 s)",
            RETRY,
        ),
        (
            [
                "no",
                (
                    "attempt 3 failed (application) at offset 30 of in/000; "
                    f"the message goes to the dead-letter journal; {AT}"
                ),
            ],
            "FAILED",
            "attempt 3 failed (application) at offset 30 of in/000",
            "the message goes to the dead-letter journal, and it is tried again at",
            RETRY,
        ),
        (
            [
                "lost",
                "attempt 1 failed (data loss); QUARANTINED; not retried before the spec changes",
            ],
            "QUARANTINED",
            "attempt 1 failed (data loss)",
            "it is not tried again before its spec changes, or it is assigned again",
            "shardctl shards rewind flights-000 --backup 0",
        ),
        (
            ["gone", f"attempt 2 failed (journal replaced); {AT}"],
            "FAILED",
            "attempt 2 failed (journal replaced)",
            "it is tried again at",
            "shardctl shards reset-source flights-000 --to-offset 0",
        ),
        (
            [
                "no message",
                (
                    "attempt 1 failed (application); to go on without it, name a journal by the label x, which keeps "
                    f"what is left out, or set min_offset of source in/000 to 40, which skips it; {AT}"
                ),
            ],
            "FAILED",
            "attempt 1 failed (application)",
            "it is tried again at",
            "set min_offset of source in/000 to 40",
        ),
        (["of an earlier version"], "FAILED", "", "it is not tried again", RETRY),
        ([], "FAILED", "", "it is not tried again", RETRY),
    ],
)
def test_failure_tells_what_was_tried_what_is_next_and_what_to_do(
    errors: list[str], state: str, tried: str, then: str, remedy: str
) -> None:
    """Each kind of failure has its own way out; an operator who reads the first lines knows it."""
    (trouble,) = troubles_of(_listed(failed_status(errors)), NOW)

    assert (trouble.state, trouble.tried) == (state, tried)
    assert then in trouble.next
    assert remedy in trouble.remedy
    assert trouble.cause == (errors[0] if errors else "its status does not tell")


def test_shard_held_back_names_the_members_that_died() -> None:
    """A shard that kills its members: whose logs to look into is what matters."""
    error = ShardHeldBackError("flights-000", members=("zone-a#one",), seconds=40)
    status = failed_status([str(error), f"attempt 0 failed (held back); QUARANTINED; {AT}"])

    (trouble,) = troubles_of(_listed(status), NOW)

    assert trouble.state == "HELD BACK"
    assert "zone-a#one" in trouble.cause
    assert "logs" in trouble.remedy


def test_place_in_the_users_code_is_told_apart_from_the_cause() -> None:
    """Somebody who must correct the code opens that file at that line."""
    status = failed_status(
        [
            "no",
            "raised at /srv/app.py:42 in consume_message",
            f"attempt 1 failed (application); {AT}",
        ]
    )

    (trouble,) = troubles_of(_listed(status), NOW)

    assert trouble.place == "/srv/app.py:42 in consume_message"


def test_stalled_shard_shows_the_line_of_the_application_that_waits() -> None:
    """The innermost frame is a library's, which waits for what the application's line asked of it."""
    stack = (
        '  File "/srv/app.py", line 42, in consume_message\n    ask()\n'
        '  File "/env/lib/python3.11/site-packages/db.py", line 7, in ask\n    recv()\n'
    )
    stall = Stall(seconds=301.0, bytes_behind=10, in_transaction=True)

    (trouble,) = troubles_of(_listed(failed_status([description(stall, stack)])), NOW)

    assert trouble.state == "STALLED"
    assert trouble.place == "/srv/app.py:42 in consume_message"
    assert trouble.cause == "no progress for 301 s in a transaction, 10 bytes behind"


def test_primary_comes_first_and_healthy_replicas_are_no_trouble() -> None:
    """The primary is what serves: a standby's failure is told after it."""
    failed = failed_status(["no"])
    cut_off = ReplicaStatus(code=ReplicaStatus.PRIMARY, unavailable="the broker is silent")
    healthy = ReplicaStatus(code=ReplicaStatus.STANDBY)

    found = troubles_of(_listed(failed, healthy, cut_off, primary=2), NOW)

    assert [(each.state, each.member) for each in found] == [
        ("UNAVAILABLE", "zone-a#member-2, its primary"),
        ("FAILED", "zone-a#member-0, a standby"),
    ]
    assert troubles_of(_listed(healthy), NOW) == []


def test_state_of_a_shard_is_that_of_its_most_advanced_replica() -> None:
    """One word in a list: a failure before all, and a shard without replicas or with none wanted is told apart."""
    primary = ReplicaStatus(code=ReplicaStatus.PRIMARY)

    assert status_of(_listed(primary, failed_status(["no"]))) == "FAILED"
    assert status_of(_listed(ReplicaStatus(code=ReplicaStatus.STANDBY), primary)) == "PRIMARY"
    assert status_of(_listed()) == "UNASSIGNED"
    assert status_of(ListResponse.Shard(spec=ShardSpec(disable=True))) == "DISABLED"


@pytest.mark.parametrize(
    ("head", "lag"), [(50, "20"), (30, "0"), (29, "UNKNOWN"), (None, "UNKNOWN")]
)
def test_lag_is_no_number_where_the_journal_is_another(head: int | None, lag: str) -> None:
    """A write head below what was read is of another journal: a difference, negative or not, would mislead."""
    assert SourceProgress("in/000", 30, head).lag_text == lag
