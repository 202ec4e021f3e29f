"""Outcomes of Shard requests as exceptions: the way back of `consumer.rpc.grpc_status`."""

from __future__ import annotations

import grpc

from allocator.errors import AllocatorError, ValidationError
from consumer.errors import (
    BoundExceededError,
    ConsumerError,
    EndpointError,
    NoShardPrimaryError,
    NotAuthorizedError,
    NotShardPrimaryError,
    ProxyHeaderError,
    RpcFailedError,
    ShardError,
    ShardNotFoundError,
    ShardStoppedError,
    UnauthenticatedError,
)
from consumer.journal.transport import never_connected
from consumer.protocol.journal_pb2 import Header
from consumer.protocol.shard_pb2 import Status

_ERROR_BY_STATUS: dict[int, type[ShardError]] = {
    Status.SHARD_NOT_FOUND: ShardNotFoundError,
    Status.NO_SHARD_PRIMARY: NoShardPrimaryError,
    Status.NOT_SHARD_PRIMARY: NotShardPrimaryError,
    Status.SHARD_STOPPED: ShardStoppedError,
}


def error_of_status(
    shard_id: str, status: Status.ValueType, header: Header | None, cause: str = ""
) -> ShardError:
    """Return the exception of a status other than OK about one shard."""
    kind = _ERROR_BY_STATUS.get(status)
    if kind is None:
        name = Status.Name(status) if status in Status.values() else str(status)
        return ShardError(shard_id, header, f"the server answered {name}")
    return kind(shard_id, header, cause)


def error_of_rpc(
    address: str, error: grpc.aio.AioRpcError
) -> ConsumerError | AllocatorError | TimeoutError:
    """Return the exception of a request that failed.

    Args:
        address: The endpoint that was asked.
        error: What gRPC raised.
    """
    code, detail = error.code(), error.details() or "no details"
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return EndpointError(address, detail, never_connected=never_connected(detail))
        case grpc.StatusCode.CANCELLED:
            # By the server, which is stopping: our own cancellation is CancelledError.
            return EndpointError(address, f"it ended the call: {detail}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return TimeoutError(f"{address} did not answer in time: {detail}")
        case grpc.StatusCode.INVALID_ARGUMENT:
            field_path, _, problem = detail.partition(": ")
            return ValidationError(field_path if problem else "", problem or detail)
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(f"{address}: {detail}")
        case grpc.StatusCode.PERMISSION_DENIED:
            return NotAuthorizedError(f"{address}: {detail}")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ProxyHeaderError(f"{address}: {detail}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BoundExceededError(f"{address}: {detail}")
        case _:
            return RpcFailedError(address, code.name, detail)
