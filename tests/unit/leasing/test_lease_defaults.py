"""What is so unless it is told otherwise: the numbers that other systems have.

Origins are in vmware/vmware-go-kcl-v2 `clientlibrary/config/config_test.go` and awslabs/amazon-kinesis-client
`leases.LeaseManagementConfig`; rewritten.
"""

from __future__ import annotations

import math
import sys

import pytest

from broadsheet.leases.expiry import LEASE_SECONDS
from broadsheet.leases.facades.eph import START_ATTEMPTS
from broadsheet.leases.facades.vmware_go import CLAIM_TIMEOUT_SECONDS, LISTING_SECONDS
from broadsheet.leases.position import Position
from broadsheet.leases.stores.dynamodb.vmware_go import LEASE_SECONDS as VMWARE_LEASE_SECONDS
from broadsheet.leases.worker.renewer import ATTEMPTS
from broadsheet.leases.worker.settings import StealWay, WorkerSettings
from broadsheet.runtime.errors import ValidationError


def test_lengths_of_leases() -> None:
    """`TestConfig`: 10,000 ms to fail over, everywhere; a poll of parents as long, a sync of shards each minute."""
    settings = WorkerSettings()

    assert LEASE_SECONDS == VMWARE_LEASE_SECONDS == settings.lease_seconds == 10.0
    assert (settings.parent_poll_seconds, settings.sync_seconds) == (10.0, 60.0)
    assert settings.leases_max == sys.maxsize
    assert settings.start == Position("TRIM_HORIZON")


def test_stealing() -> None:
    """`TestConfigLeaseStealing`: claims end after 120,000 ms, listings are good for 60,000 ms."""
    assert (CLAIM_TIMEOUT_SECONDS, LISTING_SECONDS) == (120.0, 60.0)
    assert WorkerSettings().steal is StealWay.CLAIM


def test_rounds_of_the_kinesis_client_library() -> None:
    """Renewals thrice in a length, tried twice; looks each two lengths; old after three; 30 s to hand off."""
    settings = WorkerSettings()

    assert settings.renew_every_seconds == pytest.approx(10 / 3)
    assert settings.take_every_seconds(store_tells_who_lives=False) == 20.0
    assert (settings.overdue_seconds, settings.graceful_seconds) == (30.0, 30.0)
    assert (settings.asking_seconds, settings.end_retry_seconds) == (40.0, 0.5)
    assert (ATTEMPTS, settings.renewals_at_once) == (2, 20)


def test_priority_of_very_old_leases() -> None:
    """`veryOldLeaseDurationNanosMultiplier`, and `enablePriorityLeaseAssignment` that is off."""
    assert WorkerSettings(lease_seconds=4.0, overdue_lengths=2.5).overdue_seconds == 10.0
    assert WorkerSettings(overdue_lengths=math.inf).overdue_seconds == math.inf


def test_start_of_event_processor_host() -> None:
    """Five attempts at each step."""
    assert START_ATTEMPTS == 5


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("worker.renew_seconds", {"lease_seconds": 10.0, "renew_seconds": 5.0}),
        ("worker.lease_seconds", {"lease_seconds": 0.0}),
        ("worker.graceful_seconds", {"graceful_seconds": -1.0}),
        ("worker.renewals_at_once", {"renewals_at_once": 0}),
        ("worker.threads", {"threads": 0}),
        ("worker.overdue_lengths", {"overdue_lengths": 0.0}),
        ("worker.overdue_lengths", {"overdue_lengths": -3.0}),
        ("worker.overdue_lengths", {"overdue_lengths": math.nan}),
        ("worker.start", {"start": Position("17")}),
        ("worker.start", {"start": Position("SHARD_END")}),
    ],
)
def test_settings_that_cannot_be_are_refused(field: str, values: dict[str, object]) -> None:
    """`TestConfig` panics on an empty or negative value; the error names the field here."""
    with pytest.raises(ValidationError, match=f"^{field}: expected"):
        WorkerSettings(**values)  # type: ignore[arg-type]  # values of various fields
