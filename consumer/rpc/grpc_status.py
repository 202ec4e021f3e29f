"""The mapping of exceptions to gRPC status codes.

A service that *can* answer does so in band, with a `Status` and a header. Only failures are mapped here.

    ValidationError, InvalidPositionError             INVALID_ARGUMENT      fix the request
    UnauthenticatedError                              UNAUTHENTICATED       bring a good token
    NotAuthorizedError                                PERMISSION_DENIED     bring another token
    ShardNotFoundError, JournalNotFoundError,
        SequenceIdNotFoundError, ShardNotAssignedError NOT_FOUND            stop
    ProxyHeaderError, ClusterMismatchError,
        InvalidStateError, EtcdAuthenticationError    FAILED_PRECONDITION   fix the configuration
    BoundExceededError, EtcdLimitError                RESOURCE_EXHAUSTED    split the request
    ThrottlingError                                   RESOURCE_EXHAUSTED    back off
    CommitFencedError, RegisterMismatchError,
        KeyElsewhereError, ApplyConflictError,
        other LeasingError                            ABORTED               resolve, or read, again
    ResolverStoppedError, LeaseLostError, ShardError,
        EtcdUnavailableError, EndpointError,
        JournalUnavailableError, DependencyError,
        BlockedOnParentError                          UNAVAILABLE           try another process, or later
    TimeoutError                                      DEADLINE_EXCEEDED     as the caller decides
    KeyDecodeError                                    DATA_LOSS             repair what etcd holds
    StateNotShownError                                UNIMPLEMENTED         read something else
    AioRpcError (of the hop behind us)                its own code
    anything else                                     INTERNAL              report the id in the text
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import grpc

from broadsheet.allocator.errors import (
    ClusterMismatchError,
    EtcdAuthenticationError,
    EtcdLimitError,
    EtcdUnavailableError,
    FormatLevelError,
    KeyDecodeError,
    LeaseLostError,
)
from broadsheet.consumer.errors import (
    CommitFencedError,
    KeyElsewhereError,
    ResolverStoppedError,
    ShardError,
    ShardNotFoundError,
    SplitConflictError,
    SplitDelayedError,
    StateNotShownError,
)
from broadsheet.journals.errors import (
    JournalNotFoundError,
    JournalUnavailableError,
    RegisterMismatchError,
)
from broadsheet.runtime.errors import (
    BoundExceededError,
    EndpointError,
    ServiceError,
    ValidationError,
)
from broadsheet.security.errors import NotAuthorizedError, ProxyHeaderError, UnauthenticatedError
from broadsheet.wire.errors import ApplyConflictError

DETAILS_BYTES_MAX = 4096
"""Longest text of a status as gRPC encodes it, in which what is not ASCII takes three bytes for one of UTF-8. It goes
into a header, of which clients take 8 KiB together."""

CAUSE_METADATA = "broadsheet-shard-cause-bin"
"""Trailing metadata of a Stat answered SHARD_STOPPED: the cause, as UTF-8 text."""
CAUSE_BYTES_MAX = 2048
"""Longest such text, in UTF-8; gRPC encodes it in base64."""
CUT = " ...[truncated]"


def cause_metadata(cause: str) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that tells why a shard stopped, of bounded length."""
    text = shortened(cause, CAUSE_BYTES_MAX, lambda character: len(_utf8(character)))
    return ((CAUSE_METADATA, _utf8(text)),)


def shortened(text: str, length_max: int, length_of: Callable[[str], int]) -> str:
    """Return a text, cut and marked if it is too long in some encoding.

    Args:
        text: The text.
        length_max: Of the encoded text, without the mark.
        length_of: Returns the length of one encoded character.
    """
    lengths = accumulate(map(length_of, text))
    kept = next((place for place, length in enumerate(lengths) if length > length_max), len(text))
    return text if kept == len(text) else text[:kept] + CUT


def _utf8(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _percent_encoded_length(character: str) -> int:
    # What gRPC does to a status' text: printable ASCII as it is, except for the percent sign.
    is_plain = " " <= character <= "~" and character != "%"
    return 1 if is_plain else 3 * len(_utf8(character))


# The first class that matches decides, so a subclass comes before its base.
_CODES: tuple[tuple[type[BaseException], grpc.StatusCode], ...] = (
    (KeyElsewhereError, grpc.StatusCode.ABORTED),
    (ValidationError, grpc.StatusCode.INVALID_ARGUMENT),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (NotAuthorizedError, grpc.StatusCode.PERMISSION_DENIED),
    (ShardNotFoundError, grpc.StatusCode.NOT_FOUND),
    (JournalNotFoundError, grpc.StatusCode.NOT_FOUND),
    (ProxyHeaderError, grpc.StatusCode.FAILED_PRECONDITION),
    (ClusterMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (FormatLevelError, grpc.StatusCode.FAILED_PRECONDITION),
    (EtcdAuthenticationError, grpc.StatusCode.FAILED_PRECONDITION),
    (BoundExceededError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (EtcdLimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (CommitFencedError, grpc.StatusCode.ABORTED),
    (RegisterMismatchError, grpc.StatusCode.ABORTED),
    (ApplyConflictError, grpc.StatusCode.ABORTED),
    (SplitConflictError, grpc.StatusCode.ABORTED),
    (ResolverStoppedError, grpc.StatusCode.UNAVAILABLE),
    (LeaseLostError, grpc.StatusCode.UNAVAILABLE),
    (ShardError, grpc.StatusCode.UNAVAILABLE),
    (SplitDelayedError, grpc.StatusCode.UNAVAILABLE),
    (EtcdUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (EndpointError, grpc.StatusCode.UNAVAILABLE),
    (JournalUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (TimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (KeyDecodeError, grpc.StatusCode.DATA_LOSS),
    (StateNotShownError, grpc.StatusCode.UNIMPLEMENTED),
)


def status_code_of(error: BaseException) -> grpc.StatusCode:
    """Return the status code of an exception."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code()
    if isinstance(error, ServiceError) and error.rpc_status:
        return grpc.StatusCode[error.rpc_status]
    return next(
        (code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL
    )


def status_details_of(error: BaseException, *, incident_id: str) -> str:
    """Return the status text of an exception.

    Args:
        error: The exception.
        incident_id: Logged with the traceback of an error whose text the caller must not see.
    """
    code = status_code_of(error)
    if isinstance(error, grpc.aio.AioRpcError):
        text = error.details() or code.name
    # The text of an unexpected error may reveal secrets, so the caller gets only the id of the log entry.
    elif code is grpc.StatusCode.INTERNAL:
        text = f"internal error; the server's log has it under {incident_id}"
    elif isinstance(error, TimeoutError):
        text = str(error) or "the deadline passed while the server waited"
    else:
        text = str(error)
    return shortened(_utf8(text).decode(), DETAILS_BYTES_MAX, _percent_encoded_length)
