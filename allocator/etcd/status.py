"""Classification of failed calls to etcd, from gRPC's codes and etcd's error texts.

This is the only place that reads them. Etcd uses one gRPC code for unrelated refusals, so some must be distinguished by
their text, which etcd keeps stable.

Source: etcd-io/etcd api/v3rpc/rpctypes/error.go (codes and texts).
"""

from __future__ import annotations

from enum import Enum

import grpc

from broadsheet.allocator.errors import (
    AllocatorError,
    EtcdAuthenticationError,
    EtcdLimitError,
    EtcdRequestError,
    EtcdUnavailableError,
    LeaseNotFoundError,
    RevisionCompactedError,
)


class EtcdFailure(Enum):
    """The consequence of a failed attempt for the request: whether it may be repeated."""

    NOT_SENT = "not sent"
    """No server saw the request, so it may be repeated."""
    NEW_TOKEN_NEEDED = "new token needed"  # noqa: S105 - not a secret
    """Refused before it was processed: log in again and repeat it."""
    UNKNOWN = "unknown"
    """A server may have applied it: only an idempotent request may be repeated."""
    REFUSED = "refused"
    """The request was refused, and would be refused again."""


_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,  # by the server: our own cancellation is CancelledError
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,  # a reset stream
    }
)
_TOKEN_TEXTS = ("invalid auth token", "revision of auth store is old", "user name is empty")
_CREDENTIAL_TEXTS = ("authentication failed", "authentication is not enabled", "root user")
# gRPC's own words when it never had a connection to send on; the code is UNAVAILABLE either way.
_NOT_SENT_TEXTS = ("failed to connect to all addresses", "connections to all backends failing")
_TOO_BUSY_TEXT = "too many requests"
_LIMIT_BY_TEXT = {
    "too many operations in txn request": "operations or comparisons in a transaction (--max-txn-ops, 128 by"
    " default): split it",
    "duplicate key given in txn request": "one write of a key in a transaction: merge or split the writes",
    "request is too large": "size of a request (--max-request-bytes, 1.5 MiB by default): split it",
    "larger than max": "size of a message (requests: --max-request-bytes, 1.5 MiB by default): split it",
    "database space exceeded": "size of the database (--quota-backend-bytes): compact, defragment, and clear the"
    " alarm",
    _TOO_BUSY_TEXT: "requests that etcd works on at once: send fewer",
}


def names_token(detail: str) -> bool:
    """Report whether etcd says that it is the token that it refuses."""
    return any(text in detail for text in _TOKEN_TEXTS)


def outcome_of(error: grpc.aio.AioRpcError) -> EtcdFailure:
    """Return what a failed attempt means for a retry."""
    detail = error.details() or ""
    if error.code() is grpc.StatusCode.UNAUTHENTICATED or names_token(detail):
        return EtcdFailure.NEW_TOKEN_NEEDED
    if error.code() is grpc.StatusCode.UNAVAILABLE and detail.startswith(_NOT_SENT_TEXTS):
        return EtcdFailure.NOT_SENT
    if _TOO_BUSY_TEXT in detail:
        return EtcdFailure.NOT_SENT  # etcd reports this before it proposes the request
    return EtcdFailure.UNKNOWN if error.code() in _TRANSIENT else EtcdFailure.REFUSED


def translated(error: grpc.aio.AioRpcError, endpoints: tuple[str, ...]) -> AllocatorError:
    """Return our exception for a failed call.

    Args:
        error: What gRPC raised.
        endpoints: Those that were asked, for the message.
    """
    return error_for(error.code(), error.details() or "", endpoints)


def error_for(code: grpc.StatusCode, detail: str, endpoints: tuple[str, ...]) -> AllocatorError:
    """Return our exception for a status."""
    for text, limit in _LIMIT_BY_TEXT.items():
        if text in detail:
            return EtcdLimitError(limit, detail)
    if "required revision has been compacted" in detail:
        return RevisionCompactedError(0, 0)
    if "requested lease not found" in detail:
        return LeaseNotFoundError(detail)
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED) or any(
        text in detail for text in _TOKEN_TEXTS + _CREDENTIAL_TEXTS
    ):
        return EtcdAuthenticationError(endpoints, detail)
    if code in _TRANSIENT:
        return EtcdUnavailableError(endpoints, f"{code.name}: {detail}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return EtcdLimitError("a resource of the server", detail)
    return EtcdRequestError(f"{code.name}: {detail}")
