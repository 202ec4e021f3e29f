"""Conversion between etcd's messages and plain values."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import assert_never

from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.allocator.etcd.api import Header, KeyDeleted, KeyPut, TxnResult, WatchEvent
from broadsheet.allocator.ops import (
    Compare,
    CompareResult,
    CompareTarget,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
)


def header_from(message: rpc_pb2.ResponseHeader, *, revision: int | None = None) -> Header:
    """Return a header, with `revision` in place of the server's newest if given."""
    return Header(
        cluster_id=message.cluster_id,
        member_id=message.member_id,
        revision=message.revision if revision is None else revision,
        raft_term=message.raft_term,
    )


def key_value_from(message: rpc_pb2.KeyValue) -> KeyValue:
    """Return a key as a plain value. Equal numbers are one object, because very many keys are kept."""
    created, modified = message.create_revision, message.mod_revision
    return KeyValue(
        key=message.key,
        value=message.value,
        create_revision=created,
        mod_revision=created if modified == created else modified,
        version=message.version,
        lease=_same_object(message.lease),
    )


@lru_cache(maxsize=4096)
def _same_object(lease: int) -> int:
    """Return a lease's number; that of a member's many keys is one object."""
    return lease


def events_from(messages: Iterable[rpc_pb2.Event]) -> list[WatchEvent]:
    """Return events in their order."""
    return [
        KeyDeleted(event.kv.key, event.kv.mod_revision)
        if event.type == rpc_pb2.Event.DELETE
        else KeyPut(key_value_from(event.kv))
        for event in messages
    ]


def compare_to(compare: Compare) -> rpc_pb2.Compare:
    """Return etcd's message for a comparison."""
    message = rpc_pb2.Compare(
        key=compare.key,
        range_end=compare.range_end,
        result=rpc_pb2.Compare.EQUAL
        if compare.result is CompareResult.EQUAL
        else rpc_pb2.Compare.LESS,
    )
    expected = compare.expected
    if compare.target is CompareTarget.VALUE:
        assert isinstance(expected, bytes), "a value is compared with bytes"
        message.target = rpc_pb2.Compare.VALUE
        message.value = expected
        return message
    assert isinstance(expected, int), f"{compare.target.value} is compared with an int"
    match compare.target:
        case CompareTarget.VERSION:
            message.target = rpc_pb2.Compare.VERSION
            message.version = expected
        case CompareTarget.CREATE_REVISION:
            message.target = rpc_pb2.Compare.CREATE
            message.create_revision = expected
        case CompareTarget.MOD_REVISION:
            message.target = rpc_pb2.Compare.MOD
            message.mod_revision = expected
        case CompareTarget.LEASE:
            message.target = rpc_pb2.Compare.LEASE
            message.lease = expected
        case _:
            assert_never(compare.target)
    return message


def put_to(put: Put) -> rpc_pb2.PutRequest:
    """Return etcd's message for a put."""
    return rpc_pb2.PutRequest(
        key=put.key, value=put.value, lease=put.lease, ignore_lease=put.ignore_lease
    )


def operation_to(operation: Operation) -> rpc_pb2.RequestOp:
    """Return etcd's message for an operation of a transaction."""
    match operation:
        case Put():
            return rpc_pb2.RequestOp(request_put=put_to(operation))
        case Delete(key, range_end):
            delete = rpc_pb2.DeleteRangeRequest(key=key, range_end=range_end)
            return rpc_pb2.RequestOp(request_delete_range=delete)
        case Get(key, range_end):
            return rpc_pb2.RequestOp(
                request_range=rpc_pb2.RangeRequest(key=key, range_end=range_end)
            )
        case _:
            assert_never(operation)


def txn_to(
    compares: tuple[Compare, ...], success: tuple[Operation, ...], failure: tuple[Operation, ...]
) -> rpc_pb2.TxnRequest:
    """Return etcd's message for a transaction, in a form that cannot crash etcd (see
    `broadsheet.allocator.etcd.reads`).

    A transaction that compares and only reads gets an empty transaction as one more operation: etcd then treats it as
    one that may write, which it completes even if the call is cancelled.
    """
    request = rpc_pb2.TxnRequest(
        compare=[compare_to(compare) for compare in compares],
        success=[operation_to(operation) for operation in success],
        failure=[operation_to(operation) for operation in failure],
    )
    operations = success + failure
    if operations and all(isinstance(each, Get) for each in operations):
        shorter = min(request.success, request.failure, key=len)
        shorter.append(rpc_pb2.RequestOp(request_txn=rpc_pb2.TxnRequest()))
    return request


def txn_result_from(message: rpc_pb2.TxnResponse) -> TxnResult:
    """Return a transaction's outcome."""
    return TxnResult(
        header=header_from(message.header),
        succeeded=message.succeeded,
        gets=tuple(
            tuple(key_value_from(kv) for kv in response.response_range.kvs)
            for response in message.responses
            if response.HasField("response_range")
        ),
    )
