"""Families: shards that divide the keys of the same sources among them, each with a range of groups.

A shard without labels is a family by itself, of its own name, and owns all keys. Shards of a family have the same
sources; the ranges of those that serve are disjoint and cover all groups. A *fork* is a shard that a split is making:
it owns nothing yet, and its range is a part of its parent's. A shard *absorbs* a neighbour while a merge takes over the
keys of that one, which serves them until then.

What a shard owns is where its state is. So no Apply changes that: a split or a merge does, in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import KeyRange, key_range_of, uncovered
from broadsheet.wire.labels import ABSORBS, FAMILY, FORK_OF, KEY_BEGIN, KEY_END, value_of
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

_LABELS = f"{FAMILY}, {KEY_BEGIN}, {KEY_END}, {FORK_OF} and {ABSORBS}"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The labels of a shard that say which keys are its own."""

    family: str
    owned: KeyRange
    fork_of: str = ""
    """The parent while a split makes the shard; empty: it serves."""
    absorbs: str = ""
    """The neighbour whose keys a merge is to give to the shard; empty: none is under way."""

    @classmethod
    def of(cls, spec: ShardSpec) -> Ownership:
        """Return that of a valid spec."""
        labels = spec.labels
        return cls(
            value_of(labels, FAMILY, spec.id),
            key_range_of(labels),
            value_of(labels, FORK_OF),
            value_of(labels, ABSORBS),
        )

    def __str__(self) -> str:
        fork = f", fork of {self.fork_of}" if self.fork_of else ""
        absorbs = f", absorbs {self.absorbs}" if self.absorbs else ""
        return f"keys {self.owned} of family {self.family}{fork}{absorbs}"


def is_of_family(spec: ShardSpec) -> bool:
    """Report whether a spec says anything of keys: most do not."""
    return any(label.name in (ABSORBS, FAMILY, FORK_OF) for label in spec.labels.labels)


def is_fork(spec: ShardSpec) -> bool:
    """Report whether a split is still making the shard: it serves nothing."""
    return any(label.name == FORK_OF for label in spec.labels.labels)


def absorbed_by(spec: ShardSpec) -> str:
    """Return the shard whose keys a merge is to give to another one; empty if none is."""
    return value_of(spec.labels, ABSORBS)


def family_key(root: str, family: str) -> bytes:
    """Return the key whose revision changes with each change of a family's members or ranges."""
    return AuxiliaryKeys(root).prefix + f"families/{family}".encode()


def members_of(family: str, specs: Iterable[ShardSpec]) -> list[ShardSpec]:
    """Return the shards of a family among others, by the begin of their ranges; forks last."""
    found = [spec for spec in specs if Ownership.of(spec).family == family]
    return sorted(found, key=lambda spec: (is_fork(spec), key_range_of(spec.labels), spec.id))


def check_family(members: Sequence[ShardSpec]) -> None:
    """Check the shards of one family against each other; none is fine.

    Raises:
        ValidationError: their ranges do not divide the groups, a fork has no parent, or sources differ.
    """
    if not members:
        return
    family = Ownership.of(members[0]).family
    serving = {spec.id: key_range_of(spec.labels) for spec in members if not is_fork(spec)}
    if problem := uncovered(serving.values()):
        shown = ", ".join(f"{shard_id} {owned}" for shard_id, owned in serving.items()) or "none"
        raise ValidationError(
            f"labels[{KEY_BEGIN}]",
            f"expected ranges of family {family} that divide all groups of keys, but {problem} (ranges: {shown})",
        )
    sources = _sources(members[0])
    for spec in members:
        fork_of = value_of(spec.labels, FORK_OF)
        if fork_of and not (
            fork_of in serving and serving[fork_of].covers(key_range_of(spec.labels))
        ):
            raise ValidationError(
                f"labels[{FORK_OF}]",
                f"expected a shard of family {family} that owns the fork's keys, got {fork_of} for {spec.id}",
            )
        if (absorbed := absorbed_by(spec)) and absorbed not in serving:
            raise ValidationError(
                f"labels[{ABSORBS}]",
                f"expected a shard of family {family} that serves, got {absorbed} for {spec.id}",
            )
        if _sources(spec) != sources:
            raise ValidationError(
                "sources",
                f"expected the journals of {members[0].id} for {spec.id} too, because shards of family {family} divide "
                "the keys of the same sources: change them in one apply",
            )


def check_change(
    changes: Sequence[ApplyRequest.Change],
    stored: Mapping[str, ShardSpec],
    members: Mapping[str, Sequence[ShardSpec]],
) -> None:
    """Check what an Apply makes of families.

    Args:
        changes: Of one request.
        stored: The present specs of the shards that it names, as far as they exist.
        members: All shards of each family that is touched, as they are now.

    Raises:
        ValidationError: a change would take keys from a shard, or give it some, or break a family.
    """
    for index, change in enumerate(changes):
        if not change.HasField("upsert"):
            continue
        spec = change.upsert
        held = stored.get(spec.id)
        wanted = Ownership.of(spec)
        if held is not None and Ownership.of(held) != wanted:
            raise ValidationError(
                f"changes[{index}].upsert.labels",
                f"expected shard {spec.id} to keep {Ownership.of(held)}, where its state is, got {wanted}: keep the "
                f"labels {_LABELS} as `shardctl shards list --format yaml` shows them; `shardctl shards split` and "
                "`merge` move keys",
            )
        is_alone = len(members.get(wanted.family, ())) <= 1
        if held is not None and is_of_family(held) and not is_of_family(spec) and not is_alone:
            raise ValidationError(
                f"changes[{index}].upsert.labels",
                f"expected shard {spec.id} to keep the labels {_LABELS}, because family {wanted.family} has other "
                "shards, or a split has begun",
            )
        if held is None and wanted.fork_of:
            raise ValidationError(
                f"changes[{index}].upsert.labels[{FORK_OF}]",
                "expected none in a new shard: `shardctl shards split` makes forks",
            )
        if held is None and wanted.absorbs:
            raise ValidationError(
                f"changes[{index}].upsert.labels[{ABSORBS}]",
                "expected none in a new shard: `shardctl shards merge` joins shards",
            )
    upserts = {each.upsert.id: each.upsert for each in changes if each.HasField("upsert")}
    deleted = {each.delete for each in changes if each.delete}
    for family in {*members, *(Ownership.of(spec).family for spec in upserts.values())}:
        now = {spec.id: spec for spec in members.get(family, ())}
        now |= {spec.id: spec for spec in upserts.values() if Ownership.of(spec).family == family}
        after = [spec for shard_id, spec in now.items() if shard_id not in deleted]
        try:
            check_family(members_of(family, after))
        except ValidationError as error:
            raise error.under("changes") from error


def _sources(spec: ShardSpec) -> list[str]:
    return [source.journal for source in spec.sources]
