"""What an Apply reads of the shards that it names: never the mirror's word alone, and not a call for each key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import pytest

from broadsheet.allocator.etcd.api import TxnResult
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import Compare, KeyValue, Operation, Put
from broadsheet.consumer.recoverylog.hints import primary_hints_key
from broadsheet.consumer.registry.key_space import ShardItem
from broadsheet.consumer.rpc.shard_changes import UNCONDITIONAL
from broadsheet.consumer.rpc.stored_shards import StoredShards
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

KEYS = Keys("/app")


class CountingEtcd(FakeEtcd):
    """Counts the transactions, and the reads that one makes besides."""

    calls = 0

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Perform one."""
        # A transaction that only reads is one call for each of its keys.
        self.calls += 1 if compares else len(success)
        return await super().txn(compares, success, failure)


@dataclass
class Mirror:
    """The key space of a member, which may lag."""

    items: dict[ItemId, Item] = field(default_factory=dict)
    members: Mapping[MemberId, Member] = field(default_factory=dict)

    def assignments_of(self, item_id: ItemId) -> tuple[Assignment, ...]:
        """Return none."""
        del item_id
        return ()

    def show(self, kv: KeyValue) -> None:
        """Show a spec as it was stored."""
        spec = ShardSpec.FromString(kv.value)
        item_id = ItemId(spec.id)
        value = ShardItem.of(spec, hot_standbys_max=1, encoded=kv.value)
        self.items[item_id] = Item(item_id=item_id, value=value, kv=kv)


def _spec(shard_id: str = "shard-a", log: str = "logs") -> ShardSpec:
    return ShardSpec(id=shard_id, recovery_log_prefix=log, hint_prefix="/app/hints")


@pytest.fixture
async def etcd() -> AsyncIterator[CountingEtcd]:
    """One in memory."""
    made = CountingEtcd()
    yield made
    made.close()


async def _store(etcd: FakeEtcd, spec: ShardSpec) -> KeyValue:
    """Store a spec, and return it as etcd has it."""
    key = KEYS.item(ItemId(spec.id))
    await etcd.txn((), (Put(key, spec.SerializeToString()),))
    return (await etcd.get_range(key)).kvs[0]


async def test_logs_of_many_new_shards_are_read_in_one_call_and_of_known_ones_in_two(
    etcd: CountingEtcd,
) -> None:
    """A call for each spec and each hints key made an apply of ten thousand shards three times as long."""
    mirror = Mirror()
    stored = StoredShards(etcd, mirror, KEYS)
    specs = [_spec(f"shard-{number:03d}") for number in range(128)]
    await stored.logs([ApplyRequest.Change(upsert=each) for each in specs], None)
    assert etcd.calls == 1

    for each in specs:
        mirror.show(await _store(etcd, each))
    etcd.calls = 0
    changes = [ApplyRequest.Change(upsert=each, expect_mod_revision=-1) for each in specs]
    found = await stored.logs(changes, None)
    assert etcd.calls == 2
    assert [found[each.id].spec for each in specs] == specs

    etcd.calls = 0
    assert len(await stored.specs(each.id for each in specs)) == 128
    assert etcd.calls == 1


@pytest.mark.parametrize("expects", ["the revision", "none", "whatever"])
@pytest.mark.parametrize("shows", ["nothing", "an older spec", "the spec"])
async def test_specs_and_logs_are_those_of_etcd_however_the_mirror_lags(
    etcd: CountingEtcd, shows: str, expects: str
) -> None:
    """A lagging mirror must not let an apply exchange the log of a shard that it does not know. Only where the
    transaction compares an expectation that contradicts etcd may another spec be returned, because nothing is written.
    """
    mirror, other = Mirror(), _spec(log="elsewhere")
    older = await _store(etcd, other)
    newest = await _store(etcd, _spec())
    if shows != "nothing":
        mirror.show(older if shows == "an older spec" else newest)
    stored = StoredShards(etcd, mirror, KEYS)
    expected = {"the revision": newest.mod_revision, "none": 0, "whatever": UNCONDITIONAL}[expects]
    change = ApplyRequest.Change(upsert=_spec(), expect_mod_revision=expected)

    specs = await stored.specs(["shard-a", "shard-b"])
    logs = await stored.logs([change], None)

    assert {name: each.mod_revision for name, each in specs.items()} == {
        "shard-a": newest.mod_revision
    }
    assert specs["shard-a"].spec == _spec()
    if (shows, expects) != ("nothing", "none"):
        assert logs["shard-a"].spec == _spec()
    assert (await stored.logs([change], specs))["shard-a"].spec == _spec()


async def test_logs_have_the_hints_that_are_stored_unless_the_change_replaces_them(
    etcd: CountingEtcd,
) -> None:
    """Hints of another root tell whose a log is. A shard without a log has none, whatever is at the key."""
    stored = StoredShards(etcd, Mirror(), KEYS)
    await etcd.txn((), (Put(primary_hints_key(_spec()), b"hints"),))
    plain, replaced = (ApplyRequest.Change(upsert=_spec()) for _ in range(2))
    replaced.primary_hints.log = "logs/shard-a"
    without = ApplyRequest.Change(upsert=_spec(log=""))

    found = [
        (await stored.logs([each], None))["shard-a"].hints for each in (plain, replaced, without)
    ]

    assert found == [b"hints", None, None]


async def test_spec_that_cannot_be_decoded_is_one_with_its_id(etcd: CountingEtcd) -> None:
    """Claims by id still cover it, so that it can be replaced."""
    await etcd.txn((), (Put(KEYS.item(ItemId("shard-a")), b"\xff"),))
    found = await StoredShards(etcd, Mirror(), KEYS).specs(["shard-a"])
    assert found["shard-a"].spec == ShardSpec(id="shard-a")
