"""Audit log: one event for each call that changes something, after it, whatever its outcome.

    audit.apply_shards  subject=maria actor=maria@workstation peer=ipv4:10.0.0.7:51324 upserted=['a/b'] deleted=[]
                        outcome=OK revision=1729

The subject is proven, by the token or the certificate; the actor is what the client says of itself. Texts of requests
are bounded and made printable, because a request is logged even if it is malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from broadsheet.security.actor import actor_of, is_forwarded, printable
from broadsheet.security.auth import Claims

_log = structlog.get_logger()


AUDIT_ENTRIES_MAX = 128
"""Most names of one event; etcd takes no larger transactions."""
AUDIT_CHARACTERS_MAX = 512

# `Any`: requests differ in type.
_Describe = Callable[[Any], "dict[str, Any] | None"]
"""Describes a request; None if it changes nothing."""


def _applied(request: Any) -> dict[str, Any]:
    return {
        "upserted": [
            getattr(change.upsert, "id", "") or getattr(change.upsert, "name", "")
            for change in request.changes
            if change.HasField("upsert")
        ],
        "deleted": [change.delete for change in request.changes if change.delete],
    }


_AUDITED: Mapping[str, tuple[str, _Describe]] = {
    "/consumer.Shard/Apply": ("apply_shards", _applied),
    "/consumer.Shard/Unassign": (
        "unassign_shards",
        lambda request: (
            None
            if request.dry_run
            else {"shards": request.shards, "only_failed": request.only_failed}
        ),
    ),
    "/broadsheet.v1.AllocationService/ApplyPlan": (
        "apply_plan",
        lambda request: {"plan": request.plan_id},
    ),
    "/broadsheet.v1.AllocationService/CordonMembers": (
        "cordon_members",
        lambda request: {"members": request.members, "cordoned": request.cordoned},
    ),
    "/broadsheet.v1.ElasticService/SplitShard": (
        "split_shard",
        lambda request: (
            None
            if request.dry_run
            else {"shard": request.shard, "at_group": request.at_group, "child": request.child}
        ),
    ),
    "/broadsheet.v1.ElasticService/MergeShards": (
        "merge_shards",
        lambda request: (
            None
            if request.dry_run
            else {
                "shard": request.shard,
                "other": request.other,
                "survivor": request.survivor,
            }
        ),
    ),
    "/broadsheet.v1.ElasticService/CancelMerge": (
        "cancel_merge",
        lambda request: {"survivor": request.survivor},
    ),
    "/broadsheet.v1.ElasticService/SplitJournal": (
        "split_journal",
        lambda request: (
            None if request.dry_run else {"journal": request.journal, "at_group": request.at_group}
        ),
    ),
    "/broadsheet.v1.ElasticService/RollBackTransaction": (
        "roll_back_transaction",
        lambda request: (
            None
            if request.dry_run
            else {"journal": request.journal, "producer": f"{request.producer:012x}"}
        ),
    ),
    "/broadsheet.v1.ElasticService/LeaveJournal": (
        "leave_journal",
        lambda request: {"shard": request.shard, "journal": request.journal},
    ),
    "/broadsheet.v1.ElasticService/PrepareFork": (
        "prepare_fork",
        lambda request: {"shard": request.parent, "child": request.child},
    ),
    "/broadsheet.v1.ElasticService/CancelSplit": (
        "cancel_split",
        lambda request: {"child": request.child},
    ),
    "/broadsheet.v1.RecoveryService/Prune": (
        "prune",
        lambda request: {"delay_seconds": request.delay_seconds},
    ),
    "/broadsheet.v1.RecoveryService/Rewind": (
        "rewind",
        lambda request: {
            "shard": request.shard,
            "backup": request.backup,
            "force": request.force,
        },
    ),
    "/broadsheet.v1.RecoveryService/ResetSource": (
        "reset_source",
        lambda request: {
            "shard": request.shard,
            "journal": request.journal,
            "offset": request.offset,
        },
    ),
    "/protocol.Journal/Apply": ("apply_journals", _applied),
    "/broadsheet.v1.FragmentService/DeleteFragments": (
        "delete_fragments",
        lambda request: {"journal": request.journal, "fragments": len(request.fragments)},
    ),
    "/broadsheet.v1.FragmentService/PurgeQuarantine": (
        "purge_quarantine",
        lambda request: {"entry": request.id},
    ),
    "/broadsheet.v1.FragmentService/VerifyJournal": (
        "discard_damaged",
        lambda request: {"journal": request.journal} if request.discard_damaged else None,
    ),
}
AUDITED_METHODS = frozenset(_AUDITED)
"""`/package.Service/Method` of those that change something."""


class AuditRecord:
    """The event of one call: `answered` by each answer, then `closed`."""

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._event = f"audit.{name}"
        self._fields = dict(fields)
        self._outcome = "OK"
        self._revision: int | None = None

    def answered(self, response: Any) -> None:
        """Take what an answer says: its status, and the revision of the change."""
        status = response.DESCRIPTOR.fields_by_name.get("status")
        if status is not None:
            self._outcome = status.enum_type.values_by_number[response.status].name
        for path in (("header", "etcd"), ("rewind",), ("reset",), ()):
            found = response
            for name in path:
                found = getattr(found, name, None)
            if revision := getattr(found, "revision", 0):
                self._revision = revision
                break
        pruned = getattr(response, "log", None)
        if pruned is not None:
            self._fields["fragments"] = self._fields.get("fragments", 0) + pruned.removed.fragments

    def closed(self, *, failure: str = "") -> None:
        """Log the event; `failure` is the code of the status that ended the call."""
        _log.info(
            self._event,
            **self._fields,
            outcome=failure or self._outcome,
            revision=self._revision,
        )


def audit_record(method: str, request: Any, claims: Claims, context: Any) -> AuditRecord | None:
    """Return the record of a call; None if it changes nothing.

    Args:
        method: `/package.Service/Method`.
        request: Its message; `Any`, because they differ in type.
        claims: Of the caller.
        context: Of the call; `Any`, because gRPC's and its wrappers have no common class.
    """
    name, describe = _AUDITED.get(method, ("", lambda _: None))
    what = describe(request)
    if what is None:
        return None
    metadata = tuple(context.invocation_metadata() or ())
    return AuditRecord(
        name,
        {
            "subject": claims.subject,
            "actor": actor_of(metadata, context.peer()),
            "peer": context.peer(),
            # Of a call that another member passed on, which logs it too.
            "forwarded": is_forwarded(metadata, is_hop=claims.is_hop),
            **{key: _loggable(value) for key, value in what.items()},
        },
    )


@contextmanager
def audited(
    record: AuditRecord | None, code_of: Callable[[BaseException], str]
) -> Iterator[Callable[[Any], None]]:
    """Log a record when the block has ended, also by an exception; the block passes each answer to what it yields.

    Args:
        record: None: nothing is logged.
        code_of: Returns the code of the status that an exception becomes.
    """
    if record is None:
        yield lambda _: None
        return
    try:
        yield record.answered
    except BaseException as error:
        # Whether the change was made is not known then.
        record.closed(failure=code_of(error) if isinstance(error, Exception) else "CANCELLED")
        raise
    record.closed()


def _loggable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, AUDIT_CHARACTERS_MAX)
    if isinstance(value, bool | int | float):
        return value
    return [printable(each, AUDIT_CHARACTERS_MAX) for each in value[:AUDIT_ENTRIES_MAX]]
