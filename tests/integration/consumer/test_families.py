"""Families of shards, over real members and etcd: which Apply is refused, and what may happen between two."""

from __future__ import annotations

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.ops import Put
from broadsheet.consumer.elastic.family import family_key
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.key_range import KeyRange, range_labels
from broadsheet.wire.labels import FAMILY, label_set
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from tests.support.eventually import eventually
from tests.support.members import Cluster, client_of, shard, statuses, upserts

pytestmark = pytest.mark.etcd
ANY = -1


def _shard(shard_id: str, begin: int, end: int) -> ShardSpec:
    spec = shard(shard_id)
    spec.labels.CopyFrom(label_set((FAMILY, "fam-1"), *range_labels(KeyRange(begin, end))))
    spec.disable = True
    return spec


def _delete(shard_id: str) -> ApplyRequest.Change:
    return ApplyRequest.Change(delete=shard_id, expect_mod_revision=ANY)


async def test_family_is_applied_and_deleted_as_a_whole_and_kept_whole_between(
    cluster: Cluster,
) -> None:
    """Each key has one owner at each revision, whatever a user applies."""
    halves = (_shard("shard-1", 0, 2048), _shard("shard-2", 2048, 4096))
    async with cluster.member("a") as service, client_of(service) as client:
        with pytest.raises(ValidationError, match="owned by no shard"):
            await client.apply(upserts(halves[0]))
        await client.apply(upserts(*halves))

        with pytest.raises(ValidationError, match="keys 0000-0800 of family fam-1"):
            await client.apply(upserts(shard("shard-1"), expect=ANY))
        with pytest.raises(ValidationError, match="owned by no shard"):
            await client.apply([_delete("shard-2")])
        assert list(await statuses(client)) == ["shard-1", "shard-2"]

        await client.apply([_delete("shard-1"), _delete("shard-2")])
        assert not await statuses(client)
        await client.apply(upserts(shard("shard-1")))


async def test_apply_that_overwrites_conflicts_with_a_split_that_began_meanwhile(
    cluster: Cluster, etcd: EtcdClient
) -> None:
    """Between the look and the transaction a split may begin: what overwrites everything must not undo it."""
    async with cluster.member("a") as service, client_of(service) as client:
        spec = shard("shard-1")
        spec.disable = True
        await client.apply(upserts(spec))
        await etcd.txn((), (Put(family_key(cluster.root, "shard-1"), b""),))

        with pytest.raises(ApplyConflictError):
            await client.apply(upserts(spec, expect=ANY))
        with pytest.raises(ApplyConflictError):
            await client.apply([_delete("shard-1")])
        (listed,) = (await client.list()).shards
        await client.apply(upserts(spec, expect=listed.mod_revision))


async def test_shard_with_a_range_whose_application_handles_all_keys_fails_with_the_label(
    cluster: Cluster,
) -> None:
    """Every shard of such a family would handle every row: each row would count as often as there are shards."""
    first, second = _shard("shard-1", 0, 2048), _shard("shard-2", 2048, 4096)
    first.disable = second.disable = False
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(first, second))

        async def failed() -> bool:
            (listed, _) = (await client.list()).shards
            return "labels[broadsheet.dev/key-begin]" in str(listed.status)

        await eventually(failed)
