"""The plan of a merge: which of two neighbours survives, and with which keys, or why there can be no merge."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from broadsheet.consumer.elastic.family import Ownership, absorbed_by, is_fork
from broadsheet.consumer.recoverylog.hints import has_recovery_log
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import KeyRange, range_labels
from broadsheet.wire.labels import ABSORBS, FORK_OF, label_set, union, value_of
from broadsheet.wire.shard_pb2 import ShardSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge that can begin."""

    survivor: ShardSpec
    """Labelled: it absorbs the other one."""
    absorbed: ShardSpec
    """As it is stored."""
    given: KeyRange
    """Groups that the survivor gets."""
    owned: KeyRange
    """Groups of the survivor once the merge is committed."""


def plan_merge(
    first: ShardSpec,
    second: ShardSpec,
    *,
    survivor: str = "",
    others: Sequence[ShardSpec],
    splitting: Collection[str],
) -> MergePlan:
    """Return the plan of a merge.

    Args:
        first: One of the two, as it is stored.
        second: The other one.
        survivor: Id of the one that stays; empty: the first.
        others: All shards of the first one's family.
        splitting: Shards with a part in a split that is not over.

    Raises:
        ValidationError: they cannot be merged so; the error says why.
    """
    if first.id == second.id:
        raise ValidationError("other", f"expected another shard than {first.id}")
    if survivor not in ("", first.id, second.id):
        raise ValidationError(
            "survivor",
            f"expected {first.id} or {second.id}: the merged shard goes on with the log of one of them, got {survivor}",
        )
    for field, spec in (("shard", first), ("other", second)):
        _check_ready(field, spec, others, splitting)
    stays, goes = (second, first) if survivor == second.id else (first, second)
    held, given = Ownership.of(stays), Ownership.of(goes)
    if held.family != given.family:
        raise ValidationError(
            "other",
            f"expected a shard of family {held.family}, but {goes.id} is of family {given.family}: only they divide "
            "the keys of the same sources",
        )
    return MergePlan(
        survivor=with_absorbed(stays, goes.id),
        absorbed=goes,
        given=given.owned,
        owned=joined(held.owned, given.owned),
    )


def joined(one: KeyRange, other: KeyRange) -> KeyRange:
    """Return the range of two neighbours.

    Raises:
        ValidationError: other groups lie between them.
    """
    low, high = sorted((one, other))
    if low.end != high.begin:
        raise ValidationError(
            "other", f"expected ranges that meet, but {low} and {high} are not neighbours"
        )
    return KeyRange(low.begin, high.end)


def with_absorbed(survivor: ShardSpec, absorbed: str) -> ShardSpec:
    """Return a survivor's spec while it absorbs another shard."""
    spec = ShardSpec()
    spec.CopyFrom(survivor)
    spec.labels.CopyFrom(union(survivor.labels, label_set((ABSORBS, absorbed))))
    return spec


def without_absorbed(survivor: ShardSpec) -> ShardSpec:
    """Return a survivor's spec without a merge."""
    spec = ShardSpec()
    spec.CopyFrom(survivor)
    kept = [label for label in survivor.labels.labels if label.name != ABSORBS]
    del spec.labels.labels[:]
    spec.labels.labels.extend(kept)
    return spec


def merged(survivor: ShardSpec, owned: KeyRange) -> ShardSpec:
    """Return a survivor's spec once the merge is committed."""
    spec = without_absorbed(survivor)
    spec.labels.CopyFrom(union(spec.labels, label_set(*range_labels(owned))))
    return spec


def merging_with(shard_id: str, members: Sequence[ShardSpec]) -> str:
    """Return the other shard of the merge in which a shard has a part; empty: it has none."""
    for spec in members:
        absorbed = absorbed_by(spec)
        if absorbed and shard_id in (spec.id, absorbed):
            return absorbed if shard_id == spec.id else spec.id
    return ""


def _check_ready(
    field: str, spec: ShardSpec, others: Sequence[ShardSpec], splitting: Collection[str]
) -> None:
    if is_fork(spec):
        raise ValidationError(
            field,
            f"expected a shard that serves, but {spec.id} is a fork of {value_of(spec.labels, FORK_OF)}: wait until "
            "that split is done, or cancel it",
        )
    if not has_recovery_log(spec):
        raise ValidationError(
            field,
            f"expected a shard with a recovery log, because the other one follows it; {spec.id} has none",
        )
    if spec.disable:
        raise ValidationError(field, f"shard {spec.id} is paused: resume it first")
    if spec.id in splitting:
        raise ValidationError(
            field,
            f"shard {spec.id} has a part in a split that is not over: look at `shardctl shards splits`, and wait",
        )
    if other := merging_with(spec.id, others):
        raise ValidationError(
            field,
            f"shard {spec.id} is being merged with {other} already: wait until that is done, or cancel it",
        )
