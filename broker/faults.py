"""Failures of a call, and the one translation of exceptions to gRPC statuses.

Source: gazette/core broker (handlers return plain errors, which grpc-go reports as UNKNOWN; spec §1.4).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import structlog

from broadsheet.broker.disk import is_out_of_space
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError

_log = structlog.get_logger()

# `Any`, because messages pass as bytes or as several classes. Quoted, because the class is generic
# in the stubs only.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class RpcFault(Exception):  # noqa: N818 - it ends a call, not a program
    """Failure that ends a call with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def malformed_fault(text: str) -> RpcFault:
    """Return the fault of a message that cannot be decoded."""
    return RpcFault(grpc.StatusCode.INVALID_ARGUMENT, f"malformed message: {text}")


def stream_fault(text: str) -> RpcFault:
    """Return the fault of a client that broke the append protocol."""
    return RpcFault(grpc.StatusCode.UNKNOWN, f"append stream: {text}")


@asynccontextmanager
async def answered(context: Context) -> AsyncIterator[None]:
    """End the call with the status for an exception that the block raises."""
    try:
        yield
    except Exception as error:
        fault = fault_of(error)
        if fault is None:
            raise
        await context.abort(fault.code, fault.text)


def fault_of(error: Exception) -> RpcFault | None:
    """Return the fault for an exception; None for an unexpected one."""
    match error:
        case RpcFault():
            return error
        case ValidationError():
            return RpcFault(grpc.StatusCode.UNKNOWN, str(error))
        case BoundExceededError():
            return RpcFault(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        case UnauthenticatedError():
            return RpcFault(grpc.StatusCode.UNAUTHENTICATED, str(error))
        # Gazette's brokers say UNAUTHENTICATED for this too; apart, the caller can tell what to fix.
        case NotAuthorizedError():
            return RpcFault(grpc.StatusCode.PERMISSION_DENIED, str(error))
        case OSError() if is_out_of_space(error):
            return RpcFault(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the broker's disk is full, so that it only serves reads: {error}; free some space",
            )
        case OSError():
            _log.error("rpc.failed", exc_info=error)
            return RpcFault(grpc.StatusCode.UNKNOWN, f"the broker's disk failed: {error}")
        case _:
            return None
