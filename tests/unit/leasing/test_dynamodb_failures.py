"""What errors of DynamoDB mean for a lease, and what its clients are told to do."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from broadsheet.leases.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)
from broadsheet.leases.stores.dynamodb.table import (
    CONDITION_FAILED,
    ConditionRefusedError,
    translated,
)


def _error(code: str, *, status: int = 400, retries: int = 0, **more: Any) -> ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": "said so"},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": retries},
        **more,
    }
    return ClientError(response, "UpdateItem")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        # The Kinesis Client Library takes only the first for throttling.
        ("ProvisionedThroughputExceededException", ThrottlingError),
        ("ThrottlingException", ThrottlingError),
        ("RequestLimitExceeded", ThrottlingError),
        ("LimitExceededException", ThrottlingError),
        ("ResourceNotFoundException", InvalidStateError),
        ("ValidationException", InvalidStateError),
        ("AccessDeniedException", InvalidStateError),
        ("TransactionConflictException", DependencyError),
        ("ExpiredTokenException", DependencyError),
    ],
)
def test_refusals_are_told_apart(code: str, kind: type[LeasingError]) -> None:
    """By what the caller should do; after none of them a write is in doubt."""
    with pytest.raises(kind, match=r"said so|create it") as raised, translated(writes=True):
        raise _error(code)

    assert not getattr(raised.value, "outcome_unknown", False)


@pytest.mark.parametrize("writes", [True, False])
def test_outages_leave_writes_in_doubt(writes: bool) -> None:
    """No answer, or that of a server that failed: a write may have been applied, a read cannot."""
    outages = [
        _error("InternalServerError", status=500),
        ReadTimeoutError(endpoint_url="http://x"),
        EndpointConnectionError(endpoint_url="http://x"),
    ]
    for outage in outages:
        with pytest.raises(DependencyError) as raised, translated(writes=writes):
            raise outage
        assert raised.value.outcome_unknown == writes
        assert raised.value.retryable


def test_throttling_after_secret_attempts_leaves_a_write_in_doubt() -> None:
    """A client that repeats calls may have been heard before it was throttled."""
    throttled = _error("ThrottlingException", retries=2)
    with pytest.raises(DependencyError) as raised, translated(writes=True):
        raise throttled
    assert raised.value.outcome_unknown

    with pytest.raises(ThrottlingError), translated():
        raise throttled


def test_expected_refusal_shows_what_is_there() -> None:
    """A condition that does not hold is no failure; the row comes with it."""
    row = {"leaseKey": {"S": "a"}}
    with (
        pytest.raises(ConditionRefusedError) as raised,
        translated(expected=(CONDITION_FAILED,), writes=True),
    ):
        raise _error(CONDITION_FAILED, Item=row)

    assert raised.value.item == row
