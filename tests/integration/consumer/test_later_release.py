"""A member beside members of a later release: it keeps its hands off what they wrote and it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.consumer.application import Shard
from broadsheet.consumer.shard.crash_loop import YoungDeath
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.wire.shard_pb2 import Checkpoint, ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_shards import SHARD, SOURCE, Counting, CountsStore, ShardHost, spec_of

pytestmark = pytest.mark.etcd

LATER = b'{"min_reader":2,"dead":{"of":"another kind"}}'


class _LaterStore(CountsStore):
    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Return a checkpoint as a later release would store it."""
        found = super().restore_checkpoint(shard)
        found.min_reader = 2
        return found


class _OnLaterState(Counting):
    def new_store(self, shard: Shard) -> CountsStore:
        """Open the state of a later release."""
        self.stores.append(
            _LaterStore(shard, self.directory, initial={}, state_type=dict[str, int])
        )
        return self.stores[-1]


async def test_shard_whose_checkpoint_needs_a_later_reader_fails_and_says_so(
    host: ShardHost, tmp_path: Path
) -> None:
    """Whatever the store: going on without what the later release added would lose it at the next commit."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    host.start(spec, _OnLaterState(tmp_path))
    remedy = "let a member of that release serve the shard"
    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "the checkpoint, for readers", remedy)
    )


async def test_shard_whose_rollback_needs_a_later_reader_fails_and_the_record_stays(
    host: ShardHost, etcd: EtcdClient, tmp_path: Path
) -> None:
    """A record that is passed over is a rollback that never comes: readers would wait for its messages."""
    spec = spec_of(SHARD, SOURCE)
    key = AuxiliaryKeys(host.key_space.keys.root).prefix + f"rollbacks/{SHARD}#1#out".encode()
    await etcd.put(key, LATER)
    await host.assign(spec)
    host.start(spec, Counting(tmp_path))
    remedy = "let a member of that release serve the shard"
    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "the record of a rollback", remedy)
    )
    assert [kv.value for kv in (await etcd.get_range(key)).kvs] == [LATER]


async def test_death_record_of_a_later_release_holds_nothing_back_and_stays(
    host: ShardHost, etcd: EtcdClient
) -> None:
    """Members of that release count the same death: one of ours in its place would forget those before."""
    records = host.death_records(ShardConfig(young_deaths_max=1))
    key = AuxiliaryKeys(host.key_space.keys.root).death(ItemId(SHARD))
    await etcd.put(key, LATER)
    await records.add(YoungDeath(ItemId(SHARD), MemberId("zone-a", "member-a"), 1))
    assert (await records.admit(SHARD)).members == ()
    assert [kv.value for kv in (await etcd.get_range(key)).kvs] == [LATER]
