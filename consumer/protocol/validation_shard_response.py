"""Rules of the shard service's answers: what a client refuses to believe.

Source: gazette/core consumer/protocol/rpc_extensions.go (Validate of each response).
"""

from __future__ import annotations

from consumer.protocol.alphabet import require, within
from consumer.protocol.shard_pb2 import (
    ApplyResponse,
    GetHintsResponse,
    ListResponse,
    StatResponse,
    Status,
    UnassignResponse,
)
from consumer.protocol.validation_shard import (
    validate_hints,
    validate_offsets,
    validate_replica_status,
    validate_shard_spec,
)
from consumer.protocol.validation_terms import validate_header, validate_route


def validate_stat_response(response: StatResponse) -> None:
    """Check the answer to a stat.

    Raises:
        ValidationError: its status, header or offsets are malformed.
    """
    _validate_status(response.status)
    validate_header(response.header, "header")
    validate_offsets(response.read_through, "read_through")
    validate_offsets(response.publish_at, "publish_at")


def validate_shard_list_response(response: ListResponse) -> None:
    """Check a listing: each shard has one status for each member of its route.

    Raises:
        ValidationError: the header or a listed shard is malformed.
    """
    _validate_status(response.status)
    validate_header(response.header, "header")
    for index, shard in enumerate(response.shards):
        with within(f"shards[{index}]"):
            _validate_listed(shard)


def _validate_listed(shard: ListResponse.Shard) -> None:
    with within("spec"):
        validate_shard_spec(shard.spec)
    require(
        shard.mod_revision > 0,
        "mod_revision",
        f"expected a revision above 0, got {shard.mod_revision}",
    )
    validate_route(shard.route, "route")
    require(
        len(shard.status) == len(shard.route.members),
        "status",
        f"expected one for each of {len(shard.route.members)} members, got {len(shard.status)}",
    )
    for index, status in enumerate(shard.status):
        with within(f"status[{index}]"):
            validate_replica_status(status)


def validate_shard_apply_response(response: ApplyResponse) -> None:
    """Check the answer to an apply.

    Raises:
        ValidationError: its status is unknown or its header malformed.
    """
    _validate_status(response.status)
    validate_header(response.header, "header")


def validate_hints_response(response: GetHintsResponse) -> None:
    """Check fetched hints. The header is not looked at.

    Raises:
        ValidationError: its status is unknown or hints are malformed.
    """
    _validate_status(response.status)
    if response.HasField("primary_hints"):
        validate_hints(response.primary_hints.hints, "primary_hints.hints")
    for index, backup in enumerate(response.backup_hints):
        validate_hints(backup.hints, f"backup_hints[{index}].hints")


def validate_unassign_response(response: UnassignResponse) -> None:
    """Check the answer to an unassign.

    Raises:
        ValidationError: its status is unknown.
    """
    _validate_status(response.status)


def _validate_status(status: int) -> None:
    require(status in Status.values(), "status", f"expected a known status, got {status}")
