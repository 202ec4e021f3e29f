"""Outcomes of journal requests as exceptions: in-band statuses and gRPC statuses, each translated once.

Source: gazette/core broker/client/appender.go (mapAppenderError), reader.go; spec of the statuses in journal.proto.
"""

from __future__ import annotations

import re
from typing import Final

import grpc

from broadsheet.journals.errors import (
    IndexHasGreaterOffsetError,
    JournalError,
    JournalNotAllowedError,
    JournalNotFoundError,
    JournalProtocolError,
    JournalStoreUnhealthyError,
    JournalSuspendedError,
    JournalUnavailableError,
    WrongAppendOffsetError,
)
from broadsheet.runtime.errors import EndpointError, RpcFailedError, ServiceError
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.security.tls import handshake_advice
from broadsheet.wire.journal_pb2 import Status

UNASSIGNED = (
    Status.NO_JOURNAL_PRIMARY_BROKER,
    Status.NOT_JOURNAL_PRIMARY_BROKER,
    Status.INSUFFICIENT_JOURNAL_BROKERS,
    Status.NOT_JOURNAL_BROKER,
)
"""Statuses of a journal without a broker, or with another one: nothing was done and a retry is safe."""
_ERROR_BY_STATUS: dict[Status.ValueType, type[JournalError]] = {
    Status.JOURNAL_NOT_FOUND: JournalNotFoundError,
    Status.NOT_ALLOWED: JournalNotAllowedError,
    Status.SUSPENDED: JournalSuspendedError,
    Status.WRONG_APPEND_OFFSET: WrongAppendOffsetError,
    Status.INDEX_HAS_GREATER_OFFSET: IndexHasGreaterOffsetError,
    Status.FRAGMENT_STORE_UNHEALTHY: JournalStoreUnhealthyError,
} | dict.fromkeys(UNASSIGNED, JournalUnavailableError)

# Texts of gRPC's transport when no server listens, or the name is unknown.
_NEVER_CONNECTED = re.compile(
    r"failed to connect to all addresses|connection refused|(dns|name) resolution", re.IGNORECASE
)
_REFUSED = re.compile(r"connection refused|no such file or directory", re.IGNORECASE)
BROKEN_WRITE: Final = "Internal error from Core"
"""gRPC's detail of INTERNAL where a message could not be sent, because the call was over, or its connection. No server
said that, and what it did say is lost."""
_UNKNOWN_NAME = re.compile(
    r"(dns|domain name|name) resolution|domain name not found", re.IGNORECASE
)


def error_of_status(journal: str, status: Status.ValueType, detail: str = "") -> JournalError:
    """Return the exception for a status other than OK."""
    kind = _ERROR_BY_STATUS.get(status)
    name = Status.Name(status) if status in Status.values() else str(status)
    if kind is None:
        return JournalProtocolError(journal, f"unexpected status {name} for this request")
    if kind is JournalUnavailableError:
        return JournalUnavailableError(journal, detail or name)
    return kind(journal, detail)


def error_of_rpc(address: str, error: grpc.aio.AioRpcError) -> ServiceError:
    """Return the exception for a request that gRPC failed.

    Args:
        address: The endpoint that was asked.
        error: What gRPC raised.
    """
    code, detail = error.code(), error.details() or "no details"
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return EndpointError(
                address, _unavailable(address, detail), never_connected=never_connected(detail)
            )
        case grpc.StatusCode.CANCELLED:
            # Cancelled by the broker, which is stopping: our own cancellation is CancelledError.
            return EndpointError(address, f"it ended the call: {detail}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return EndpointError(address, f"no answer in time: {detail}")
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(f"{address}: {detail}")
        case grpc.StatusCode.PERMISSION_DENIED:
            return NotAuthorizedError(f"{address}: {detail}")
        case grpc.StatusCode.INTERNAL if detail == BROKEN_WRITE:
            return EndpointError(address, "the call ended while a message was sent")
        case _:
            return RpcFailedError(address, code.name, detail)


def never_connected(detail: str) -> bool:
    """Tell from the detail of an UNAVAILABLE whether the server certainly saw nothing of the request."""
    return _NEVER_CONNECTED.search(detail) is not None


def _unavailable(address: str, detail: str) -> str:
    if advice := handshake_advice(address, detail):
        return f"{advice} ({detail})"
    if _REFUSED.search(detail):
        return "connection refused; is the broker running?"
    if _UNKNOWN_NAME.search(detail):
        return f"unknown host name; is the address right? ({detail})"
    return detail
