"""The claims to recovery logs and to keys of hints that an apply would make, and those that it must refuse.

An apply sees specs and hints, and not the logs themselves: what it lets pass is refused by the record in the log of
another shard (`broadsheet.consumer.recoverylog.ownership`).

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from broadsheet.allocator.keys import AUXILIARY_ROOT
from broadsheet.consumer.errors import ForeignLogError
from broadsheet.consumer.recoverylog.hints import (
    decode_hints,
    has_recovery_log,
    primary_hints_key,
    recovery_log_of,
)
from broadsheet.consumer.recoverylog.ownership import check_claim, claim_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

HINTS_DIRECTORY = "hints"
"""Below a directory of this name there are hints, and no key space."""
RESERVED_DIRECTORIES = frozenset({"items", "members", "assign", "leases", "owners", "workers"})
"""Directories of an allocator's root (`broadsheet.allocator.keys`), and of a lease store's in etcd."""

DIRECTORIES_KEPT = 256
"""Bound on directories whose place is remembered; the shards of an application have few."""

FindSpec = Callable[[str], ShardSpec | None]
"""Returns the present spec of a shard, by id; None: there is none."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The state in etcd of the log of a shard that is to be applied."""

    spec: ShardSpec | None = None
    """Its present spec."""
    hints: bytes | None = None
    """The value of the primary hints' key that the new spec names."""


def check_logs(
    changes: Sequence[ApplyRequest.Change],
    *,
    root: str,
    stored: Mapping[str, StoredLog],
    spec_of: FindSpec,
) -> None:
    """Check the recovery logs and the places of hints that valid changes name.

    Args:
        changes: Of one apply.
        root: Of the cluster.
        stored: By shard id, of each upsert.
        spec_of: Finds other shards.

    Raises:
        ValidationError: two shards would share a log, a log would be left behind, hints are of another log or shard, or
            they would be among keys that are no hints.
    """
    changed = {change.upsert.id or change.delete: change for change in changes}

    def after(shard_id: str) -> ShardSpec | None:
        change = changed.get(shard_id)
        if change is None:
            return spec_of(shard_id)
        return change.upsert if change.HasField("upsert") else None

    for index, change in enumerate(changes):
        if change.HasField("upsert"):
            path = f"changes[{index}].upsert"
            held = stored.get(change.upsert.id, StoredLog())
            _check_kept(path, change.upsert, held.spec)
            _check_place(path, change.upsert, held.spec, root)
            _check_unshared(path, change.upsert, after)
            if not change.HasField("primary_hints"):
                _check_hints(path, change.upsert, held.hints, root)
            elif change.primary_hints.log != recovery_log_of(change.upsert):
                raise ValidationError(
                    f"changes[{index}].primary_hints.log",
                    f"expected {recovery_log_of(change.upsert)!r}, the shard's recovery log, got "
                    f"{change.primary_hints.log!r}",
                )


def sharers_of(spec: ShardSpec, spec_of: FindSpec) -> list[str]:
    """Return the ids of other shards that name the log of this one.

    A log's name ends with the shard's id, so these ids are the ends of the name behind a slash.
    """
    return _sharers_of(spec, recovery_log_of, spec_of)


def _sharers_of(
    spec: ShardSpec, name_of: Callable[[ShardSpec], str], spec_of: FindSpec
) -> list[str]:
    """Return the ids of other shards that have a name, which ends with the shard's id, in common with this one."""
    name = name_of(spec)
    found = ((shard_id, spec_of(shard_id)) for shard_id in _ends_of(name) if shard_id != spec.id)
    return [shard_id for shard_id, other in found if other is not None and name_of(other) == name]


def _ends_of(name: str) -> Iterator[str]:
    """Yield the ends of a name behind a slash, longest first."""
    slash = name.find("/")
    while slash >= 0:
        yield name[slash + 1 :]
        slash = name.find("/", slash + 1)


def _hints_name(spec: ShardSpec) -> str:
    return f"{spec.hint_prefix}/{spec.id}" if has_recovery_log(spec) else ""


def _check_kept(path: str, spec: ShardSpec, before: ShardSpec | None) -> None:
    """Check that a shard's log is not exchanged.

    Its primary would record on in the old one, and be restored from the new one, which lacks its state.
    """
    if before is None or not has_recovery_log(before):
        return
    log, was = recovery_log_of(spec), recovery_log_of(before)
    if log != was:
        raise ValidationError(
            f"{path}.recovery_log_prefix",
            f"expected {before.recovery_log_prefix!r}, as the shard has it, because its state is in {was}; got "
            f"{spec.recovery_log_prefix!r}. For a shard that starts from nothing, use another id, or delete this one "
            "and apply it with another recovery_log_prefix and hint_prefix",
        )


def _check_place(path: str, spec: ShardSpec, before: ShardSpec | None, root: str) -> None:
    """Check that a shard's hints would not be among the keys of an allocator or of a lease store.

    Its primary writes them with the rights of its member, which may reach other roots.
    """
    # A shard that has the prefix already gets nothing new by it, and must stay changeable.
    if not has_recovery_log(spec) or (before and before.hint_prefix == spec.hint_prefix):
        return
    key = primary_hints_key(spec).decode()
    taken = _key_space_of(key.rpartition("/")[0], root)
    if taken:
        raise ValidationError(
            f"{path}.hint_prefix",
            f"expected a place for hints: {key} would be among the keys of {taken}. Take another prefix, such as "
            f"{root}/hints",
        )


@lru_cache(maxsize=DIRECTORIES_KEPT)
def _key_space_of(directory: str, root: str) -> str:
    """Return the directory of other keys that a directory of hints would be in; "" if there is none.

    Which roots exist is not known here, and their keys may not be readable, so the names of directories decide.
    """
    if f"{directory}/".startswith(f"{AUXILIARY_ROOT}/"):
        return AUXILIARY_ROOT
    # The names within the root's own path were chosen by its operator.
    begin = root.count("/") + 1 if f"{directory}/".startswith(f"{root}/") else 1
    directories = directory.split("/")
    for index, name in enumerate(directories[begin:], begin):
        if name == HINTS_DIRECTORY:
            return ""
        if name in RESERVED_DIRECTORIES:
            return "/".join(directories[: index + 1])
    return ""


def _check_unshared(path: str, spec: ShardSpec, spec_of: FindSpec) -> None:
    if not has_recovery_log(spec):
        return
    # The usual case costs one look-up for each end of both names.
    ends = {*_ends_of(recovery_log_of(spec)), *_ends_of(_hints_name(spec))} - {spec.id}
    if all(spec_of(end) is None for end in ends):
        return
    others = sharers_of(spec, spec_of)
    if others:
        raise ValidationError(
            f"{path}.recovery_log_prefix",
            f"expected a log of its own: {recovery_log_of(spec)} is the recovery log of shard {others[0]}",
        )
    # Logs may differ where hints do not: each primary would replace the hints of the other.
    others = _sharers_of(spec, _hints_name, spec_of)
    if others:
        raise ValidationError(
            f"{path}.hint_prefix",
            f"expected hints of its own: shard {others[0]} has its hints at {_hints_name(spec)}, too",
        )


def _check_hints(path: str, spec: ShardSpec, value: bytes | None, root: str) -> None:
    hints = _decoded_or_none(value) if has_recovery_log(spec) else None
    if hints is None:
        return
    key = primary_hints_key(spec).decode()
    if hints.log != recovery_log_of(spec):
        raise ValidationError(
            f"{path}.hint_prefix",
            f"expected no hints of another log below it: {key} holds those of {hints.log}, and the shard's is "
            f"{recovery_log_of(spec)}",
        )
    properties = {each.path: each.content for each in hints.properties}
    try:
        check_claim(hints.log, properties, claim_of(root, spec))
    except ForeignLogError as error:
        raise ValidationError(
            f"{path}.recovery_log_prefix", f"{error} (by the hints at {key})"
        ) from error


def _decoded_or_none(value: bytes | None) -> FSMHints | None:
    """Return stored hints; None if there are none, or none that can be read, which their recovery tells of."""
    try:
        return decode_hints(value) if value is not None else None
    except ValueError:
        return None
