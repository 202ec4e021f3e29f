"""What a failure of DynamoDB means for a lease: the one place that reads botocore's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from consumer.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)
from consumer.leasing.dynamodb.core.values import Item

CONDITION_FAILED: Final = "ConditionalCheckFailedException"
NOT_FOUND: Final = "ResourceNotFoundException"
"""No such table; with moto, no such index either."""
IN_USE: Final = "ResourceInUseException"
"""There is such a table, or it is being made or deleted."""
_INVALID: Final = "ValidationException"
_TRANSACTION_CONFLICT: Final = "TransactionConflictException"
_THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "LimitExceededException",
    }
)
_PASSING: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "RequestTimeoutException"})
"""Refusals that end by themselves, e.g. once the client has new credentials."""


class RefusedError(Exception):
    """DynamoDB did not do what was asked, for a reason that its caller expects. Never leaves this package."""

    def __init__(self, code: str, item: Item | None = None) -> None:
        """Say why.

        Args:
            code: AWS' own.
            item: Of a condition that does not hold: the row as it is; None: there is none.
        """
        super().__init__(code)
        self.code = code
        self.item = item


@contextmanager
def translated(*, expected: tuple[str, ...] = (), writes: bool = False) -> Iterator[None]:
    """Turn what a client raises into errors of leasing.

    Args:
        expected: Codes that the caller knows what to do about.
        writes: The call may have been applied if no answer comes.

    Raises:
        RefusedError: DynamoDB answered with an expected code.
        ThrottlingError: there is no capacity; nothing was written.
        DependencyError: no answer came, or one of an outage.
        InvalidStateError: there is no table, or DynamoDB refuses the call and always will.
    """
    try:
        yield
    except ClientError as error:
        raise _error_for(error, expected=expected, writes=writes) from error
    except BotoCoreError as error:
        # One that could not be sent may be the second attempt at one whose answer was lost.
        raise DependencyError(_text(error), outcome_unknown=writes) from error


def _error_for(
    error: ClientError, *, expected: tuple[str, ...], writes: bool
) -> LeasingError | RefusedError:
    # Any: what the answer has besides, by the kind of error.
    response: Any = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    if code in expected:
        return RefusedError(code, response.get("Item"))
    metadata = response.get("ResponseMetadata", {})
    if code in _THROTTLED:
        if writes and metadata.get("RetryAttempts", 0):
            # The client tried before, and may have been heard.
            return DependencyError(_text(error), outcome_unknown=True)
        return ThrottlingError(_text(error))
    if code == NOT_FOUND:
        return InvalidStateError(f"no lease store: the table is not there; create it ({code})")
    if code == _INVALID:
        return InvalidStateError(
            f"DynamoDB refuses the call; is the table one of this layout? {_text(error)}"
        )
    if code == _TRANSACTION_CONFLICT or code in _PASSING:
        return DependencyError(_text(error))
    status = metadata.get("HTTPStatusCode", HTTPStatus.INTERNAL_SERVER_ERROR)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidStateError(f"DynamoDB refuses the call ({code}): {_text(error)}")
    return DependencyError(_text(error), outcome_unknown=writes)


def _text(error: Exception) -> str:
    return str(error).partition("\n")[0]
