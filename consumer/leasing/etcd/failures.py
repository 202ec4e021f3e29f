"""What a failure of etcd means for a lease: the one place that turns its errors into those of leasing."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from allocator.errors import (
    EtcdError,
    EtcdLimitError,
    EtcdUnavailableError,
    LeaseNotFoundError,
    RevisionCompactedError,
)
from consumer.errors import DependencyError, InvalidStateError, ThrottlingError

T = TypeVar("T")

_BUSY_TEXT = "too many requests"


async def answer_of(request: Awaitable[T], *, writes: bool = False) -> T:
    """Return etcd's answer.

    Args:
        request: To etcd.
        writes: It may have been applied if no answer comes.

    Raises:
        DependencyError: no answer came, or the etcd lease that the request names has ended; then nothing was written.
        ThrottlingError: etcd has too much to do.
        InvalidStateError: it refuses the request, and always will.
    """
    try:
        return await request
    except EtcdUnavailableError as error:
        raise DependencyError(str(error), outcome_unknown=writes) from error
    except (LeaseNotFoundError, RevisionCompactedError) as error:
        raise DependencyError(str(error)) from error
    except EtcdLimitError as error:
        if _BUSY_TEXT in error.detail:
            raise ThrottlingError(str(error)) from error
        raise InvalidStateError(str(error)) from error
    except EtcdError as error:
        raise InvalidStateError(str(error)) from error
