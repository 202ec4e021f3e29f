"""The one table of exceptions and gRPC codes, and the way back in the client."""

from __future__ import annotations

import base64
import json
import string
from urllib.parse import quote

import grpc
import pytest

from broadsheet.allocator.errors import (
    ClusterMismatchError,
    EtcdLimitError,
    EtcdUnavailableError,
    KeyDecodeError,
    LeaseLostError,
)
from broadsheet.consumer.client.member_rpc import error_of_rpc, error_of_status
from broadsheet.consumer.errors import (
    CommitFencedError,
    NoShardPrimaryError,
    NotShardPrimaryError,
    ResolverStoppedError,
    ShardNotFoundError,
    ShardStoppedError,
)
from broadsheet.consumer.rpc.gateway import cause_header
from broadsheet.consumer.rpc.grpc_status import (
    CAUSE_METADATA,
    CUT,
    cause_metadata,
    status_code_of,
    status_details_of,
)
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.leases.errors import (
    BlockedOnParentError,
    DependencyError,
    InvalidPositionError,
    InvalidStateError,
    SequenceIdNotFoundError,
    ShardClaimedError,
    ShardNotAssignedError,
    ShutdownError,
    ThrottlingError,
)
from broadsheet.leases.record import RecordConflictError
from broadsheet.runtime.errors import (
    BoundExceededError,
    EndpointError,
    RpcFailedError,
    ValidationError,
)
from broadsheet.security.errors import NotAuthorizedError, ProxyHeaderError, UnauthenticatedError
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.shard_pb2 import Status

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValidationError("shard", "expected an id"), CODE.INVALID_ARGUMENT),
        (UnauthenticatedError("no token"), CODE.UNAUTHENTICATED),
        (NotAuthorizedError("lacks APPLY"), CODE.PERMISSION_DENIED),
        (ShardNotFoundError("shard-1"), CODE.NOT_FOUND),
        (JournalNotFoundError("a/journal"), CODE.NOT_FOUND),
        (ProxyHeaderError("wrong process"), CODE.FAILED_PRECONDITION),
        (ClusterMismatchError(1, 2), CODE.FAILED_PRECONDITION),
        (BoundExceededError("changes: too many"), CODE.RESOURCE_EXHAUSTED),
        (EtcdLimitError("--max-txn-ops", "129"), CODE.RESOURCE_EXHAUSTED),
        (CommitFencedError("/root/items/shard-1", 1, 2), CODE.ABORTED),
        (ApplyConflictError(), CODE.ABORTED),
        (ResolverStoppedError("leaving"), CODE.UNAVAILABLE),
        (LeaseLostError(1, "expired"), CODE.UNAVAILABLE),
        (NoShardPrimaryError("shard-1"), CODE.UNAVAILABLE),
        (NotShardPrimaryError("shard-1"), CODE.UNAVAILABLE),
        (ShardStoppedError("shard-1"), CODE.UNAVAILABLE),
        (EtcdUnavailableError(("e:1",), "refused"), CODE.UNAVAILABLE),
        (EndpointError("http://h:1", "refused"), CODE.UNAVAILABLE),
        (TimeoutError(), CODE.DEADLINE_EXCEEDED),
        (KeyDecodeError(b"/hints/x", "expected JSON"), CODE.DATA_LOSS),
        (InvalidPositionError("position.seq: expected digits"), CODE.INVALID_ARGUMENT),
        (SequenceIdNotFoundError("shard-1"), CODE.NOT_FOUND),
        (ShardNotAssignedError("shard-1"), CODE.NOT_FOUND),
        (InvalidStateError("no lease store"), CODE.FAILED_PRECONDITION),
        (ThrottlingError("too many requests"), CODE.RESOURCE_EXHAUSTED),
        (DependencyError("refused", outcome_unknown=True), CODE.UNAVAILABLE),
        (BlockedOnParentError("b", ("a",)), CODE.UNAVAILABLE),
        (ShutdownError("lost"), CODE.ABORTED),
        (ShardClaimedError("by w2"), CODE.ABORTED),
        (RecordConflictError("a", None), CODE.ABORTED),
        (KeyError("a bug"), CODE.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_status_code_of(error: Exception, code: grpc.StatusCode) -> None:
    """Every row of the table in the module's docstring."""
    assert status_code_of(error) is code


def test_status_details_name_the_field() -> None:
    """A malformed request is told which field, and what was expected."""
    error = ValidationError("changes[0].upsert.id", "expected 4 to 512 bytes")

    assert status_details_of(error, incident_id="x") == (
        "changes[0].upsert.id: expected 4 to 512 bytes"
    )


def test_status_details_of_a_bug_hide_it_behind_an_id() -> None:
    """What we did not foresee may hold secrets; the log has it."""
    details = status_details_of(RuntimeError("password=hunter2"), incident_id="abc123")

    assert "hunter2" not in details
    assert "abc123" in details


LONG_TEXTS = {
    "letters": "x" * 18_000,
    "ideographs": "\u4e00" * 6_000,
    "no UTF-8": "\ud800" * 6_000,
    "percent signs": "%" * 18_000,
    "line ends": "a\n" * 9_000,
}


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_status_details_are_bounded_as_grpc_encodes_them(text: str) -> None:
    """A header larger than 8 KiB would break the connection, or answer RESOURCE_EXHAUSTED, instead of the status."""
    details = status_details_of(NotAuthorizedError(text), incident_id="")

    assert details.endswith(CUT)
    assert len(quote(details, safe=string.printable.replace("%", "").strip())) < 4200


@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_cause_of_a_stopped_shard_is_bounded_in_metadata_and_headers(text: str) -> None:
    """An exception of 18 KB, e.g. with a rejected document in it, must not take the answer of Stat away."""
    ((_, value),) = cause_metadata(text)
    assert len(base64.b64encode(value)) < 4096
    assert value.decode().endswith(CUT)

    header = cause_header(text.encode(errors="replace"))
    assert len(header) < 4200
    assert header.isascii()
    assert json.loads(header).endswith(CUT)


def test_short_cause_is_told_whole() -> None:
    """What fits is not touched."""
    assert cause_metadata("division by zero: ä") == (
        (CAUSE_METADATA, "division by zero: ä".encode()),
    )


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """What a failed call raises."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (CODE.UNAVAILABLE, EndpointError),
        (CODE.CANCELLED, EndpointError),  # a member that stops ends its calls
        (CODE.DEADLINE_EXCEEDED, TimeoutError),
        (CODE.INVALID_ARGUMENT, ValidationError),
        (CODE.UNAUTHENTICATED, UnauthenticatedError),
        (CODE.PERMISSION_DENIED, NotAuthorizedError),
        (CODE.FAILED_PRECONDITION, ProxyHeaderError),
        (CODE.RESOURCE_EXHAUSTED, BoundExceededError),
        (CODE.INTERNAL, RpcFailedError),
    ],
)
def test_error_of_rpc(code: grpc.StatusCode, kind: type[Exception]) -> None:
    """The client raises what the server met."""
    error = error_of_rpc("http://host:1", rpc_error(code, "selector: bad"))

    assert type(error) is kind


def test_error_of_rpc_keeps_field_and_names_address() -> None:
    """A field stays a field on the way back; a connection that fails names where to."""
    bad = error_of_rpc("http://host:1", rpc_error(CODE.INVALID_ARGUMENT, "selector: bad"))
    refused = error_of_rpc("http://host:1", rpc_error(CODE.UNAVAILABLE, "refused"))

    assert isinstance(bad, ValidationError)
    assert (bad.field_path, bad.problem) == ("selector", "bad")
    assert "http://host:1" in str(refused)


def test_relayed_rpc_error_keeps_its_code() -> None:
    """A hop that was refused refuses the caller for the same reason."""
    assert status_code_of(rpc_error(CODE.PERMISSION_DENIED, "no")) is CODE.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.SHARD_NOT_FOUND, ShardNotFoundError),
        (Status.NO_SHARD_PRIMARY, NoShardPrimaryError),
        (Status.NOT_SHARD_PRIMARY, NotShardPrimaryError),
        (Status.SHARD_STOPPED, ShardStoppedError),
    ],
)
def test_error_of_status(status: Status.ValueType, kind: type[Exception]) -> None:
    """Each answer other than OK has its exception, with the header that says where to go."""
    header = Header()

    error = error_of_status("shard-1", status, header, "cause")

    assert type(error) is kind
    assert error.header is header
    assert "cause" in str(error)
