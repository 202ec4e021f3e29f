"""Rules of shards: their declarations, their members' and replicas' values, and their service's requests and answers.

A client checks answers before it uses them. Each function raises `ValidationError` for the first rule broken, with the
path of its field in snake case (`changes[0].upsert.sources[1].journal`).

Source: gazette/core consumer/protocol/shard_spec_extensions.go, rpc_extensions.go.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.alphabet import (
    below,
    require,
    shown,
    validate_journal,
    validate_journal_name,
    validate_token,
    within,
)
from broadsheet.wire.key_range import key_range_of
from broadsheet.wire.labels import (
    ABSORBS,
    DEAD_LETTER_JOURNAL,
    FAMILY,
    FORK_OF,
    ID,
    KEY_BEGIN,
    KEY_END,
    RECOVERY_LOG_OF,
    SINGLE_VALUED,
    values_of,
    weight_thousandths,
)
from broadsheet.wire.recorded_op_pb2 import FSMHints, Segment
from broadsheet.wire.shard_pb2 import (
    ApplyRequest,
    ApplyResponse,
    ConsumerSpec,
    GetHintsRequest,
    GetHintsResponse,
    ListRequest,
    ListResponse,
    ReplicaStatus,
    ShardSpec,
    StatRequest,
    StatResponse,
    Status,
    UnassignRequest,
    UnassignResponse,
)
from broadsheet.wire.validation_terms import (
    validate_change,
    validate_header,
    validate_place,
    validate_process_spec,
    validate_selector,
    validate_spec_labels,
    validate_status,
    validate_status_and_header,
)

_STATUSES = frozenset(Status.values())
_STATUS_CODES = frozenset(ReplicaStatus.Code.values())
SHARD_ID_BYTES = (4, 512)
"""Shortest and longest shard id, bytes."""


def validate_shard_id(shard_id: str, field_path: str = "id") -> None:
    """Check a shard id: a token, which unlike a journal name may start with `/` and need not be clean.

    Raises:
        ValidationError: its length or alphabet is wrong.
    """
    validate_token(shard_id, field_path, bytes_range=SHARD_ID_BYTES)


def validate_shard_spec(spec: ShardSpec) -> None:
    """Check a shard's declaration.

    Raises:
        ValidationError: the first rule broken, with the path of its field.
    """
    # Here and below a message is made only where a rule is broken, because a listing checks thousands of specs.
    validate_shard_id(spec.id)
    _validate_recovery(spec)
    shortest = spec.min_txn_duration.ToNanoseconds()
    if shortest < 0:
        raise ValidationError("min_txn_duration", f"expected 0 s or more, got {shortest / 1e9:g} s")
    longest = spec.max_txn_duration.ToNanoseconds()
    if longest <= 0:
        raise ValidationError(
            "max_txn_duration", f"expected more than 0 s, got {longest / 1e9:g} s"
        )
    validate_spec_labels(spec.labels, meta_labels=(ID,), single_valued=SINGLE_VALUED)
    _validate_dead_letters(spec)
    weight_thousandths(spec.labels)
    _validate_family(spec)
    _validate_sources(spec)


def _validate_dead_letters(spec: ShardSpec) -> None:
    sources = {source.journal.partition(";")[0] for source in spec.sources}
    for journal in values_of(spec.labels, DEAD_LETTER_JOURNAL):
        label = f"labels[{DEAD_LETTER_JOURNAL}]"
        validate_journal_name(journal, label)
        require(
            journal not in sources,
            label,
            f"expected a journal that is no source of the shard: it would fail at its dead letters, got {journal}",
        )


def _validate_family(spec: ShardSpec) -> None:
    names = {label.name for label in spec.labels.labels}
    # Few shards have any of these, and a listing checks thousands.
    if names.isdisjoint((ABSORBS, FAMILY, FORK_OF, KEY_BEGIN, KEY_END)):
        return
    owned = key_range_of(spec.labels)
    for name in (ABSORBS, FAMILY, FORK_OF):
        for shard_id in values_of(spec.labels, name):
            validate_shard_id(shard_id, f"labels[{name}]")
    require(
        FAMILY in names or owned.is_all,
        f"labels[{FAMILY}]",
        f"expected a family's name beside {KEY_BEGIN} and {KEY_END}, because others must own the rest of the keys",
    )
    require(
        ABSORBS not in names
        or (FAMILY in names and spec.id not in values_of(spec.labels, ABSORBS)),
        f"labels[{ABSORBS}]",
        f"expected another shard of the family that {FAMILY} names",
    )
    if FORK_OF not in names:
        return
    require(
        FAMILY in names and spec.id not in values_of(spec.labels, FORK_OF),
        f"labels[{FORK_OF}]",
        f"expected another shard of the family that {FAMILY} names",
    )
    require(
        bool(spec.recovery_log_prefix),
        "recovery_log_prefix",
        f"expected one beside {FORK_OF}: a fork begins as a copy of its parent's log",
    )


def _validate_recovery(spec: ShardSpec) -> None:
    if spec.recovery_log_prefix:
        validate_journal_name(f"{spec.recovery_log_prefix}/{spec.id}", "recovery_log_prefix")
        prefix = spec.hint_prefix
        # "/" alone is refused too, because an etcd key that starts with "//" is always a mistake.
        if len(prefix) < 2 or not prefix.startswith("/") or posixpath.normpath(prefix) != prefix:
            raise ValidationError(
                "hint_prefix",
                f"expected an absolute clean path such as /hints, got {shown(prefix)}",
            )
    elif spec.hint_prefix:
        raise ValidationError(
            "hint_prefix",
            f"expected none without a recovery_log_prefix, got {shown(spec.hint_prefix)}",
        )
    for former in values_of(spec.labels, RECOVERY_LOG_OF):
        require(
            former.startswith("/"),
            f"labels[{RECOVERY_LOG_OF}]",
            f"expected the former owner's root, such as /broadsheet/app, or /broadsheet/app=id, got {shown(former)}",
        )
    if spec.hint_backups < 0:
        raise ValidationError("hint_backups", f"expected 0 or more, got {spec.hint_backups}")


def _validate_sources(spec: ShardSpec) -> None:
    previous = ""
    for index, source in enumerate(spec.sources):
        with within(f"sources[{index}]"):
            validate_journal(source.journal)
            if source.min_offset < 0:
                raise ValidationError("min_offset", f"expected 0 or more, got {source.min_offset}")
            if source.journal <= previous:
                raise ValidationError(
                    "journal",
                    f"expected sources strictly ascending by journal, got {shown(source.journal)} "
                    f"after {shown(previous)}",
                )
        previous = source.journal
    _validate_after(spec)


def _validate_after(spec: ShardSpec) -> None:
    for source in spec.sources:
        require(
            source.after_offset >= 0 and (bool(source.after) or not source.after_offset),
            f"sources[{source.journal}].after_offset",
            f"expected 0 or more, and 0 without `after`, got {source.after_offset}",
        )
    names = {source.journal for source in spec.sources}
    # A journal that the shard has read to its seal need be no source of it.
    divided = [
        source
        for source in spec.sources
        if source.after and (source.after in names or not source.after_offset)
    ]
    if not divided:
        return
    after = {source.journal: source.after for source in spec.sources}
    for source in divided:
        seen, name = {source.journal}, source.after
        while name:
            require(
                name in after and name not in seen,
                f"sources[{source.journal}].after",
                f"expected another source of the shard, which waits for none of its own parts, got {shown(name)}",
            )
            seen.add(name)
            # The journal that this one was read behind may be none any more; this one's own turn checks that.
            name = after[name] if after[name] in after else ""


def validate_consumer_spec(spec: ConsumerSpec) -> None:
    """Check a member's value.

    Raises:
        ValidationError: its process is malformed.
    """
    validate_process_spec(spec.process_spec, "process_spec")


def validate_replica_status(status: ReplicaStatus) -> None:
    """Check a replica's status: FAILED has errors, and no other code does.

    Raises:
        ValidationError: the code is unknown, or errors and code contradict each other.
    """
    failed = status.code == ReplicaStatus.FAILED
    if status.code in _STATUS_CODES and failed == bool(status.errors):
        # Every status of every replica is checked here, and nearly all are fine.
        return
    require(
        status.code in _STATUS_CODES,
        "code",
        f"expected one of {', '.join(ReplicaStatus.Code.keys())}, got {status.code}",
    )
    require(
        failed == bool(status.errors),
        "errors",
        "expected at least one beside FAILED, got none"
        if failed
        else f"expected none beside {ReplicaStatus.Code.Name(status.code)}, got {list(status.errors)}",
    )


def validate_offsets(offsets: Mapping[str, int], parent: str) -> None:
    """Check a map of offsets by journal.

    Raises:
        ValidationError: a journal is malformed or an offset negative.
    """
    for journal, offset in sorted(offsets.items()):
        path = f"{parent}[{journal}]"
        validate_journal(journal, path)
        require(offset >= 0, path, f"expected an offset of 0 or more, got {offset}")


def validate_stat_request(request: StatRequest) -> None:
    """Check a request for a shard's progress.

    Raises:
        ValidationError: its header, shard or offsets are malformed.
    """
    if request.HasField("header"):
        validate_header(request.header, "header")
    validate_shard_id(request.shard, "shard")
    validate_offsets(request.read_through, "read_through")


def validate_list_request(request: ListRequest) -> None:
    """Check a request to list shards.

    Raises:
        ValidationError: its selector is malformed.
    """
    validate_selector(request.selector, "selector")


def validate_shard_apply_request(request: ApplyRequest) -> None:
    """Check each change of an apply.

    Raises:
        ValidationError: a change is neither or both of an upsert and a delete, or is malformed.
    """
    for index, change in enumerate(request.changes):
        with within(f"changes[{index}]"):
            _validate_change(change)


def _validate_change(change: ApplyRequest.Change) -> None:
    validate_change(
        change,
        upsert=lambda: validate_shard_spec(change.upsert),
        delete=lambda: validate_shard_id(change.delete, "delete"),
    )
    if change.HasField("primary_hints"):
        require(change.HasField("upsert"), "primary_hints", "expected none beside a delete")
        validate_hints(change.primary_hints, "primary_hints")


def validate_hints_request(request: GetHintsRequest) -> None:
    """Check a request for a shard's hints.

    Raises:
        ValidationError: its shard id is malformed.
    """
    validate_shard_id(request.shard, "shard")


def validate_unassign_request(request: UnassignRequest) -> None:
    """Check a request to unassign shards.

    Raises:
        ValidationError: a shard id is malformed.
    """
    for index, shard_id in enumerate(request.shards):
        validate_shard_id(shard_id, f"shards[{index}]")


def validate_hints(hints: FSMHints, parent: str = "") -> None:
    """Check recovery hints: each live file's segments are sound, and name a log only if it is another.

    Raises:
        ValidationError: a segment is malformed.
    """
    for node_index, node in enumerate(hints.live_nodes):
        for index, segment in enumerate(node.segments):
            path = below(parent, f"live_nodes[{node_index}].segments[{index}]")
            with within(path):
                _validate_segment(segment, hints.log)


def _validate_segment(segment: Segment, implied_log: str) -> None:
    require(
        not segment.log or segment.log != implied_log,
        "log",
        f"expected none where it is the hints' own log, got {shown(segment.log)}",
    )
    require(segment.author != 0, "author", "expected an author other than 0")
    require(
        segment.first_seq_no > 0,
        "first_seq_no",
        f"expected a number above 0, got {segment.first_seq_no}",
    )
    require(
        segment.first_offset >= 0,
        "first_offset",
        f"expected 0 or more, got {segment.first_offset}",
    )
    require(
        segment.last_seq_no >= segment.first_seq_no,
        "last_seq_no",
        f"expected at least first_seq_no {segment.first_seq_no}, got {segment.last_seq_no}",
    )
    require(
        segment.last_offset == 0 or segment.last_offset > segment.first_offset,
        "last_offset",
        f"expected 0 (unknown) or more than {segment.first_offset}, got {segment.last_offset}",
    )
    validate_journal_name(segment.log or implied_log, "log")


def validate_stat_response(response: StatResponse) -> None:
    """Check the answer to a stat.

    Raises:
        ValidationError: its status, header or offsets are malformed.
    """
    validate_status_and_header(response, _STATUSES)
    validate_offsets(response.read_through, "read_through")
    validate_offsets(response.publish_at, "publish_at")


def validate_shard_list_response(response: ListResponse) -> None:
    """Check a listing: each shard has one status for each member of its route.

    Raises:
        ValidationError: the header or a listed shard is malformed.
    """
    validate_status_and_header(response, _STATUSES)
    for index, shard in enumerate(response.shards):
        with within(f"shards[{index}]"):
            _validate_listed(shard)


def _validate_listed(shard: ListResponse.Shard) -> None:
    with within("spec"):
        validate_shard_spec(shard.spec)
    validate_place(shard)
    members = len(shard.route.members)
    if len(shard.status) != members:
        raise ValidationError(
            "status", f"expected one for each of {members} members, got {len(shard.status)}"
        )
    for index, status in enumerate(shard.status):
        with within(f"status[{index}]"):
            validate_replica_status(status)


def validate_shard_apply_response(response: ApplyResponse) -> None:
    """Check the answer to an apply.

    Raises:
        ValidationError: its status is unknown or its header malformed.
    """
    validate_status_and_header(response, _STATUSES)


def validate_hints_response(response: GetHintsResponse) -> None:
    """Check fetched hints. The header is not looked at.

    Raises:
        ValidationError: its status is unknown or hints are malformed.
    """
    validate_status(response.status, _STATUSES)
    if response.HasField("primary_hints"):
        validate_hints(response.primary_hints.hints, "primary_hints.hints")
    for index, backup in enumerate(response.backup_hints):
        validate_hints(backup.hints, f"backup_hints[{index}].hints")


def validate_unassign_response(response: UnassignResponse) -> None:
    """Check the answer to an unassign.

    Raises:
        ValidationError: its status is unknown.
    """
    validate_status(response.status, _STATUSES)
