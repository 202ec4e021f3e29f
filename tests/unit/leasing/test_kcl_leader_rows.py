"""The row of a Java leader: what is read of it, whatever stands there."""

from __future__ import annotations

import pytest

from broadsheet.leases.stores.dynamodb.kcl_java import LEASE_SECONDS, leader_in


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30000", 30.0),
        ("", LEASE_SECONDS),
        ("-1", LEASE_SECONDS),
        ("9" * 400, LEASE_SECONDS),
        ("9" * 5_000, LEASE_SECONDS),
    ],
)
def test_lease_of_a_leader_is_a_time_or_the_usual_one(written: str, seconds: float) -> None:
    """The table is shared with other programs: a duration that no float or integer holds must not end a worker."""
    row = {
        "ownerName": {"S": "worker"},
        "recordVersionNumber": {"S": "1"},
        "leaseDuration": {"S": written},
    }

    leader = leader_in(row)

    assert leader is not None
    assert leader.lease_seconds == seconds
