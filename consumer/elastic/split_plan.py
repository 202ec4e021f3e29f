"""The plan of a split: the child's spec, and the parent's with its labels, or why there can be none."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from broadsheet.consumer.elastic.family import Ownership, is_fork
from broadsheet.consumer.elastic.merge_plan import merging_with
from broadsheet.consumer.recoverylog.hints import has_recovery_log, recovery_log_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import LabelSet
from broadsheet.wire.key_range import KeyRange, range_labels
from broadsheet.wire.labels import (
    FAMILY,
    FORK_OF,
    RECOVERY_LOG_OF,
    label_set,
    union,
    value_of,
)
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.validation_shard import validate_shard_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWish:
    """Request of a caller."""

    at_group: int | None = None
    """First group of the child; None: the median of the parent's load, or the middle of its range."""
    median_group: int = 0
    """First group of the upper half of the load that the parent's primary has measured; 0: none was."""
    child: str = ""
    """Id of the child; empty: the parent's, and the child's first group, with a number if its log is of the history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """A split that can begin."""

    parent: ShardSpec
    """Labelled: its family, and the range that it has now."""
    child: ShardSpec
    """A fork of it."""
    kept: KeyRange
    """Groups of the parent once the fork is committed."""
    given: KeyRange
    """Groups of the child."""


def plan_split(
    parent: ShardSpec,
    wish: SplitWish,
    *,
    ids: Collection[str],
    members: Sequence[ShardSpec],
    history: Collection[str] = (),
) -> SplitPlan:
    """Return the plan of a split.

    Args:
        parent: As it is stored.
        wish: What is asked for.
        ids: Of all shards.
        members: All shards of the parent's family.
        history: Recovery logs that hold a part of the parent's state, such as of a shard that it absorbed and once was
            a fork of. A child that went on in one of them could not be recovered.

    Raises:
        ValidationError: it cannot be split so; the error says why.
    """
    held = Ownership.of(parent)
    _check_parent(parent, members)
    at = wish.at_group
    if at is None:
        at = _cut_of(held.owned, wish.median_group)
    if not held.owned.begin < at < held.owned.end:
        raise ValidationError(
            "at_group",
            f"expected a group inside of {held.owned} of shard {parent.id}, that is {held.owned.begin + 1} to "
            f"{held.owned.end - 1}, got {at}"
            if held.owned.end - held.owned.begin > 1
            else f"shard {parent.id} owns one group of keys, {held.owned}, which cannot be divided",
        )
    kept, given = KeyRange(held.owned.begin, at), KeyRange(at, held.owned.end)
    child_id = wish.child or _unused_id(f"{parent.id}-{at:04x}", parent, history)
    if _log_of(parent, child_id) in history:
        raise ValidationError(
            "child",
            f"shard {parent.id} has a part of its state from recovery log {_log_of(parent, child_id)}, which shard "
            f"{child_id} would continue: name the new shard otherwise",
        )
    if child_id in ids:
        raise ValidationError(
            "child", f"expected the id of a new shard, but shard {child_id} exists"
        )
    labelled = ShardSpec()
    labelled.CopyFrom(parent)
    labelled.labels.CopyFrom(union(parent.labels, _labels(held.family, held.owned)))
    return SplitPlan(
        parent=labelled,
        child=_child(parent, child_id, held.family, given),
        kept=kept,
        given=given,
    )


def narrowed(parent: ShardSpec, kept: KeyRange) -> ShardSpec:
    """Return a parent's spec once a fork has taken over the rest of its groups."""
    spec = ShardSpec()
    spec.CopyFrom(parent)
    family = Ownership.of(parent).family
    spec.labels.CopyFrom(union(parent.labels, _labels(family, kept)))
    return spec


def without_fork(child: ShardSpec) -> ShardSpec:
    """Return a fork's spec once it is committed."""
    spec = ShardSpec()
    spec.CopyFrom(child)
    kept = [label for label in child.labels.labels if label.name != FORK_OF]
    del spec.labels.labels[:]
    spec.labels.labels.extend(kept)
    return spec


def cut_points(owned: KeyRange, parts: int, quantiles: Sequence[int] = ()) -> list[int]:
    """Return the first groups of all parts but the first, if a range is divided into parts of about one load.

    Args:
        owned: The range.
        parts: How many.
        quantiles: First groups of equal parts of the measured load but the first, ascending; of as many parts as there
            are, cuts lie between them in proportion. None, or of an earlier range: load is taken as even.

    Raises:
        ValidationError: it has fewer groups than that, or there is one part.
    """
    groups = owned.end - owned.begin
    if not 2 <= parts <= groups:
        raise ValidationError("into", f"expected 2 to {groups} parts of {owned}, got {parts}")
    known = bool(quantiles) and all(owned.begin < group < owned.end for group in quantiles)
    edges = [owned.begin, *(quantiles if known else ()), owned.end]
    cuts: list[int] = []
    for part in range(1, parts):
        whole, rest = divmod((len(edges) - 1) * part, parts)
        low, high = edges[whole], edges[min(whole + 1, len(edges) - 1)]
        # Each part has a group at least, also where one group has most of the load.
        least, most = (cuts[-1] if cuts else owned.begin) + 1, owned.end - (parts - part)
        cuts.append(min(max(low + (high - low) * rest // parts, least), most))
    return cuts


def _cut_of(owned: KeyRange, median_group: int) -> int:
    """Return the first group of the upper half of the load; of the groups, if it is unknown, or of an earlier range."""
    if owned.begin < median_group < owned.end:
        return median_group
    return (owned.begin + owned.end) // 2


def _log_of(parent: ShardSpec, child_id: str) -> str:
    return recovery_log_of(ShardSpec(id=child_id, recovery_log_prefix=parent.recovery_log_prefix))


def _unused_id(wanted: str, parent: ShardSpec, history: Collection[str]) -> str:
    """Return an id whose recovery log is in no part of a history."""
    numbered = itertools.chain((wanted,), (f"{wanted}-{number}" for number in itertools.count(2)))
    return next(each for each in numbered if _log_of(parent, each) not in history)


def _check_parent(parent: ShardSpec, members: Sequence[ShardSpec]) -> None:
    if is_fork(parent):
        raise ValidationError(
            "shard",
            f"expected a shard that serves, but {parent.id} is a fork of {value_of(parent.labels, FORK_OF)}: wait "
            "until that split is done, or cancel it",
        )
    if not has_recovery_log(parent):
        raise ValidationError(
            "shard",
            f"expected a shard with a recovery log, because the child begins as a copy of it; {parent.id} has none",
        )
    if parent.disable:
        raise ValidationError("shard", f"shard {parent.id} is paused: resume it first")
    pending = [spec.id for spec in members if value_of(spec.labels, FORK_OF) == parent.id]
    if pending:
        raise ValidationError(
            "shard",
            f"shard {parent.id} is being split already, {pending[0]} is its fork: wait until that is done, or cancel "
            "it",
        )
    if other := merging_with(parent.id, members):
        raise ValidationError(
            "shard",
            f"shard {parent.id} is being merged with {other}: wait until that is done, or cancel it",
        )


def _labels(family: str, owned: KeyRange) -> LabelSet:
    return label_set((FAMILY, family), *range_labels(owned))


def _child(parent: ShardSpec, child_id: str, family: str, given: KeyRange) -> ShardSpec:
    child = ShardSpec()
    child.CopyFrom(parent)
    child.id = child_id
    # The child's log never had another owner's name.
    own = [label for label in parent.labels.labels if label.name != RECOVERY_LOG_OF]
    del child.labels.labels[:]
    child.labels.labels.extend(own)
    added = label_set((FAMILY, family), (FORK_OF, parent.id), *range_labels(given))
    child.labels.CopyFrom(union(child.labels, added))
    try:
        validate_shard_spec(child)
    except ValidationError as error:
        raise error.under("child") from error
    return child
