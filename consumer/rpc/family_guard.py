"""Protection of families in an Apply: it may break none, and none may change while it is judged.

Each transaction that changes shards of a family, or their ranges, also writes the family's key, and compares the
revision that it read. A shard that has no labels of keys needs that only if the Apply overwrites whatever is there:
then a split may not have begun meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from broadsheet.allocator.etcd.reads import read_expected
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Compare, Delete, Operation, Put, TxnCheckpoint
from broadsheet.consumer.elastic.family import (
    Ownership,
    check_change,
    family_key,
    is_of_family,
    members_of,
)
from broadsheet.consumer.elastic.flip import abandoned_keys
from broadsheet.consumer.elastic.journal_split import check_parts_kept
from broadsheet.consumer.registry.key_space import is_visible, shard_of
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.shard_changes import UNCONDITIONAL, StoredSpec, require_bound
from broadsheet.consumer.rpc.stored_shards import StoredShards
from broadsheet.runtime.formats import FormatLevel
from broadsheet.wire.alphabet import within
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec


class FamilyGuard:
    """Judges changes of shards by the families that they touch."""

    def __init__(self, membership: LocalMember, stored: StoredShards) -> None:
        """Judge nothing yet.

        Args:
            membership: Of this process: etcd, where families have their keys, and the mirror of the specs.
            stored: Reads the shards that are changed.
        """
        self._etcd = membership.etcd
        self._key_space = membership.key_space
        self._keys = membership.key_space.keys
        self._formats = membership.formats
        self._stored = stored

    async def guarded(
        self,
        changes: Sequence[ApplyRequest.Change],
        checkpoint: TxnCheckpoint,
        *,
        allowed: LabelSelector,
    ) -> TxnCheckpoint:
        """Return the transaction of an Apply with what keeps families whole.

        Args:
            changes: Of the request.
            checkpoint: Their transaction.
            allowed: The caller's claims: of shards that they do not cover, nothing is told.

        Raises:
            ValidationError: the changes would break a family.
            FormatLevelError: a member of an earlier release would handle the keys of all of a family's shards.
            BoundExceededError: the transaction becomes too long.
        """
        held = await self._stored.present(changes)
        visible = {key: each.spec for key, each in held.items() if is_visible(each.spec, allowed)}
        for index, change in enumerate(changes):
            if change.HasField("upsert") and change.upsert.id in visible:
                with within(f"changes[{index}].upsert"):
                    check_parts_kept(visible[change.upsert.id], change.upsert)
        families = _touched(changes, visible)
        compares = list(self._unchanged(changes, held, checkpoint))
        operations: list[Operation] = []
        members: dict[str, list[ShardSpec]] = {}
        for family in sorted(families):
            key = family_key(self._keys.root, family)
            revision = await self.seen_revision(family)
            members[family] = [
                spec for spec in self.members_of(family) if is_visible(spec, allowed)
            ]
            compares.append(Compare.mod_revision(key, revision))
            if _remains(family, changes, members[family]):
                operations.append(Put(key, b""))
            elif revision:
                operations.append(Delete(key))
        check_change(changes, visible, members)
        operations += await self._abandonments(changes, visible)
        if any(is_of_family(each.upsert) for each in changes):
            # Last, because the level never falls: what is refused anyway must not raise it.
            await self.require_ranges()
        if any(source.after for each in changes for source in each.upsert.sources):
            await self.require_divided()
        guarded = TxnCheckpoint(
            tuple(dict.fromkeys((*checkpoint.compares, *compares))),
            (*checkpoint.operations, *operations),
            checkpoint.subject,
        )
        require_bound(guarded, what=f"{len(changes)} changes", field_name="changes")
        return guarded

    async def require_ranges(self) -> None:
        """Return once shards may own ranges of keys; the cluster's level of formats is raised if need be.

        Raises:
            FormatLevelError: a member of an earlier release would handle the keys of all of a family's shards.
            TxnConflictError: members joined again and again meanwhile.
        """
        if self._formats is not None:
            await self._formats.require(
                FormatLevel.KEY_RANGES, what="a shard that owns a range of keys"
            )

    async def require_divided(self) -> None:
        """Return once sources may be read behind others; as `require_ranges`.

        Raises:
            FormatLevelError: a member of an earlier release would read them at once.
            TxnConflictError: members joined again and again meanwhile.
        """
        if self._formats is not None:
            await self._formats.require(
                FormatLevel.DIVIDED_JOURNALS, what="a journal that is divided"
            )

    async def seen_revision(self, family: str) -> int:
        """Return the revision of a family's key, 0 if it is absent, once the mirror shows all shards of then.

        Each transaction that changes them writes the key, so a mirror that is as new lacks none.
        """
        found = (await self._etcd.get_range(family_key(self._keys.root, family))).kvs
        revision = found[0].mod_revision if found else 0
        await self._key_space.read_back(revision)
        return revision

    def members_of(self, family: str) -> list[ShardSpec]:
        """Return the shards of a family in the mirror, by their ranges; forks last."""
        name = family.encode()
        # Ten thousand specs are not decoded for the few that name the family.
        candidates = (
            shard_of(item).spec
            for item in self._key_space.items.values()
            if name in shard_of(item).encoded
        )
        return members_of(family, candidates)

    async def _abandonments(
        self, changes: Iterable[ApplyRequest.Change], held: Mapping[str, ShardSpec]
    ) -> Sequence[Operation]:
        """Return what ends splits and merges of shards that are deleted: later shards of their ids have none.

        What begins or is committed meanwhile changes the family, and the deletion fails.
        """
        deleted = [
            spec
            for change in changes
            if (spec := held.get(change.delete)) is not None and is_of_family(spec)
        ]
        wanted = [key for spec in deleted for key in abandoned_keys(self._keys.root, spec)]
        found = await read_expected(self._etcd, dict.fromkeys(wanted))
        return [Delete(key) for key, kv in found.items() if kv is not None]

    def _unchanged(
        self,
        changes: Iterable[ApplyRequest.Change],
        held: Mapping[str, StoredSpec],
        checkpoint: TxnCheckpoint,
    ) -> Iterable[Compare]:
        """Yield what must hold so that a change overwrites no range that it does not know."""
        compared = {compare.key for compare in checkpoint.compares}
        for change in changes:
            shard_id = change.upsert.id or change.delete
            key = self._keys.item(ItemId(shard_id))
            # The revision that the change expects, or by which the caller was judged, is compared already.
            if change.expect_mod_revision != UNCONDITIONAL or key in compared:
                continue
            stored = held.get(shard_id)
            if stored is not None and is_of_family(stored.spec):
                yield Compare.mod_revision(key, stored.mod_revision)
            else:
                yield Compare.absent(family_key(self._keys.root, shard_id))


def _touched(
    changes: Iterable[ApplyRequest.Change], held: Mapping[str, ShardSpec]
) -> frozenset[str]:
    """Return the families whose shards are changed; a shard without labels is in none."""
    specs = [change.upsert for change in changes if change.HasField("upsert")]
    specs += [
        spec
        for change in changes
        if (spec := held.get(change.upsert.id or change.delete)) is not None
    ]
    return frozenset(Ownership.of(spec).family for spec in specs if is_of_family(spec))


def _remains(
    family: str, changes: Iterable[ApplyRequest.Change], members: Iterable[ShardSpec]
) -> bool:
    """Report whether any shard is labelled as of the family after the changes."""
    after = {spec.id: spec for spec in members}
    for change in changes:
        if change.HasField("upsert"):
            after[change.upsert.id] = change.upsert
        else:
            after.pop(change.delete, None)
    return any(
        is_of_family(spec) and Ownership.of(spec).family == family for spec in after.values()
    )
