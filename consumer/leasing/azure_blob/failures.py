"""What a failure of Azure means for a lease: the one place that reads its errors."""

from __future__ import annotations

from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

from consumer.errors import (
    DependencyError,
    InvalidStateError,
    LeasingError,
    ThrottlingError,
)

T = TypeVar("T")

BLOB_NOT_FOUND = "BlobNotFound"
LEASE_ID_MISSING = "LeaseIdMissing"
_CONTAINER_NOT_FOUND = "ContainerNotFound"
_BEING_DELETED = "ContainerBeingDeleted"
_CONDITION_STATUSES = (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
_BUSY_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class RefusedError(Exception):
    """Azure did not do what was asked, for a condition of the request does not hold. Never leaves this package."""

    def __init__(self, code: str) -> None:
        """Say which.

        Args:
            code: Azure's, e.g. `ConditionNotMet`, `LeaseIdMissing`.
        """
        super().__init__(code)
        self.code = code


async def answer_of(request: Awaitable[T], *, writes: bool = False) -> T:
    """Return Azure's answer.

    Args:
        request: To Azure; its client may have sent it more than once.
        writes: It may have been applied if no answer comes.

    Raises:
        RefusedError: a condition does not hold, or there is no such blob.
        DependencyError: no answer came.
        ThrottlingError: Azure has too much to do, or still deletes a container of that name.
        InvalidStateError: there is no container, or Azure refuses the request and always will.
    """
    try:
        return await request
    except HttpResponseError as error:
        raise _error_for(error, writes=writes) from error
    except (ServiceRequestError, ServiceResponseError) as error:
        # One that could not be sent may be the second attempt at one whose answer was lost.
        raise DependencyError(_text(error), outcome_unknown=writes) from error
    except AzureError as error:
        raise DependencyError(_text(error), outcome_unknown=writes) from error


def _error_for(error: HttpResponseError, *, writes: bool) -> LeasingError | RefusedError:
    code = _code_of(error)
    status = error.status_code or 0
    if code == _CONTAINER_NOT_FOUND:
        return InvalidStateError("no lease store: the container is not there; create it")
    if code == _BEING_DELETED or status in _BUSY_STATUSES:
        return ThrottlingError(_text(error))
    if code == BLOB_NOT_FOUND or status in _CONDITION_STATUSES:
        return RefusedError(code)
    if isinstance(error, ClientAuthenticationError) or (
        HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
    ):
        return InvalidStateError(f"Azure refuses the request ({code or status}): {_text(error)}")
    return DependencyError(_text(error), outcome_unknown=writes)


def _code_of(error: HttpResponseError) -> str:
    """Return Azure's code for an error; its clients know it as text or as a member of an enumeration."""
    code: object = getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))


def _text(error: AzureError) -> str:
    return str(error.message or error).partition("\n")[0]
