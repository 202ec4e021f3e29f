"""Tables kept by changes, beside the key space that they follow, over arbitrary histories and selectors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from hypothesis import example, given, strategies as st

from broadsheet.allocator.etcd.api import Etcd, KeyDeleted, KeyPut, RangeResult, WatchBatch
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.client.shard_client import ShardTable
from broadsheet.consumer.registry.key_space import ShardDecoder, process_id_of
from broadsheet.consumer.resolver.decision import header_of
from broadsheet.consumer.rpc.shard_listing import (
    Listing,
    ShardChangeLog,
    list_shards,
    selections_of,
)
from broadsheet.consumer.rpc.watch_api import ROWS_PER_RESPONSE, difference_of, table_of
from broadsheet.wire.journal_pb2 import LabelSelector, ProcessSpec
from broadsheet.wire.labels import label_set, selector
from broadsheet.wire.shard_pb2 import ConsumerSpec, ReplicaStatus
from broadsheet.wire.watch_pb2 import WatchShardsResponse
from tests.support.key_space_values import KEYS, etcd_header, member_id, shard_spec

ALL = LabelSelector()
TEAM_A = selector(label_set(("team", "a")))
SHARDS = ("shard-1", "shard-2", "shard-3")
MEMBERS = ("x", "y")

puts_of_shards = st.tuples(st.just("shard"), st.sampled_from(SHARDS), st.sampled_from("ab"))
puts_of_members = st.tuples(st.just("member"), st.sampled_from(MEMBERS), st.sampled_from("12"))
puts_of_replicas = st.tuples(st.just("replica"), st.sampled_from(SHARDS), st.sampled_from(MEMBERS))
deletions = st.tuples(
    st.just("delete"), st.sampled_from(("shard", "member", "replica")), st.integers(0, 5)
)
looks = st.tuples(st.just("look"), st.integers(0, 2), st.just(""))
steps = st.lists(
    st.one_of(puts_of_shards, puts_of_members, puts_of_replicas, deletions, looks), max_size=40
)


class _World:
    """A key space whose changes the test makes, and the log of them."""

    def __init__(self, *, remembered: int) -> None:
        # Nothing is asked of etcd: the test delivers what it would.
        self.key_space = KeySpace(cast("Etcd", None), KEYS, ShardDecoder(hot_standbys_max=3))
        self.changes = ShardChangeLog(self.key_space, shards_max=remembered)
        self.key_space.observe(ObserverStage.DERIVE, self.changes.look)
        self.key_space.replace(RangeResult(header=etcd_header(1), kvs=()))
        self._revision = 1
        self._keys: dict[bytes, int] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self._revision += 1
        created = self._keys.setdefault(key, self._revision)
        kv = KeyValue(
            key=key,
            value=value,
            create_revision=created,
            mod_revision=self._revision,
            version=1,
            lease=0,
        )
        self._deliver(KeyPut(kv))

    def delete(self, key: bytes) -> None:
        if self._keys.pop(key, None) is not None:
            self._revision += 1
            self._deliver(KeyDeleted(key, self._revision))

    def _deliver(self, change: KeyPut | KeyDeleted) -> None:
        self.key_space.apply([WatchBatch(header=etcd_header(self._revision), events=(change,))])


class _Watcher:
    """A table, and the view of the caller that keeps it."""

    def __init__(self, wanted: LabelSelector, allowed: LabelSelector) -> None:
        self.table = ShardTable()
        self._wanted, self._allowed = wanted, allowed

    def look(self, world: _World) -> None:
        """Do what the service and the client do, and compare the table with a listing."""
        for response in self._responses(world):
            self.table.apply(response)
        listing = list_shards(world.key_space, wanted=self._wanted, allowed=self._allowed)
        rows = asyncio.run(listing).shards
        assert dict(self.table) == {row.spec.id: row for row in rows}

    def _responses(self, world: _World) -> Sequence[WatchShardsResponse]:
        header = header_of(None, world.key_space.header)
        listing = Listing(world.key_space, selections_of(self._wanted, self._allowed))
        touched = world.changes.since(self.table.revision) if self.table.revision else None
        if touched is not None:
            responses = difference_of(touched, listing, header)
            known = set(self.table)
            gone = {shard_id for response in responses for shard_id in response.removed}
            # The difference of one step may name a shard that came and went in between, but only one it may see.
            assert gone <= known | {str(each) for each in touched}
            self.table.revision = header.etcd.revision
            return responses
        parts = table_of(listing, list(world.key_space.items), header)
        return [part for part in parts if part is not None]


_ASSIGNED = [("shard", "shard-1", "a"), ("replica", "shard-1", "x"), ("member", "x", "1")]


@given(steps, st.sampled_from((1, 3, 1_000)))
@example([*_ASSIGNED, ("look", 0, ""), ("member", "x", "2")], 1_000)
@example([*_ASSIGNED, ("look", 0, ""), ("delete", "member", 0)], 1_000)
@example(
    [*_ASSIGNED, ("look", 1, ""), ("shard", "shard-1", "b"), ("replica", "shard-1", "y")], 1_000
)
def test_table_kept_by_changes_equals_a_listing(
    history: Sequence[tuple[str, str | int, str | int]], remembered: int
) -> None:
    """Whatever came, went, moved or changed its labels since the caller's revision, however long ago that was."""
    world = _World(remembered=remembered)
    watchers = (_Watcher(ALL, ALL), _Watcher(TEAM_A, ALL), _Watcher(ALL, TEAM_A))
    for kind, first, second in history:
        _perform(world, watchers, kind, first, second)
    for watcher in watchers:
        watcher.look(world)


def _perform(
    world: _World, watchers: Sequence[_Watcher], kind: str, first: str | int, second: str | int
) -> None:
    match kind, first, second:
        case "shard", str(shard_id), str(team):
            spec = shard_spec(shard_id, team=team)
            world.put(KEYS.item(ItemId(shard_id)), spec.SerializeToString())
        case "member", str(name), str(port):
            identity = member_id(name)
            process = ProcessSpec(id=process_id_of(identity), endpoint=f"http://{name}:{port}")
            consumer = ConsumerSpec(process_spec=process, shard_limit=10)
            world.put(KEYS.member(identity), consumer.SerializeToString())
        case "replica", str(shard_id), str(name):
            status = ReplicaStatus(code=ReplicaStatus.PRIMARY)
            key = KEYS.assignment(ItemId(shard_id), member_id(name), 0)
            world.put(key, status.SerializeToString())
        case "delete", str(what), int(number):
            world.delete(_key(what, number))
        case "look", int(number), _:
            watchers[number].look(world)


def _key(what: str, number: int) -> bytes:
    item, member = ItemId(SHARDS[number % 3]), member_id(MEMBERS[number % 2])
    if what == "shard":
        return KEYS.item(item)
    return KEYS.member(member) if what == "member" else KEYS.assignment(item, member, 0)


def test_changes_before_the_memory_are_unknown() -> None:
    """Memory is bounded by shards: what is older is not guessed."""
    world = _World(remembered=2)
    for number in range(4):
        world.put(
            KEYS.item(ItemId(f"shard-{number}")), shard_spec(f"shard-{number}").SerializeToString()
        )
    newest = world.key_space.header.revision
    assert world.changes.since(newest) == {}
    assert set(world.changes.since(newest - 2) or ()) == {"shard-2", "shard-3"}
    assert world.changes.since(newest - 3) is None


def test_table_begins_anew_though_the_first_rows_are_not_for_the_caller() -> None:
    """The row that it sees comes in a late part; what its table had before is gone all the same."""
    world, watcher = _World(remembered=1), _Watcher(TEAM_A, ALL)
    world.put(KEYS.item(ItemId("gone")), shard_spec("gone", team="a").SerializeToString())
    watcher.look(world)
    world.delete(KEYS.item(ItemId("gone")))
    for number in range(2 * ROWS_PER_RESPONSE):
        shard_id = f"other-{number:04d}"
        world.put(KEYS.item(ItemId(shard_id)), shard_spec(shard_id, team="b").SerializeToString())
    world.put(KEYS.item(ItemId("seen")), shard_spec("seen", team="a").SerializeToString())
    watcher.look(world)
    assert set(watcher.table) == {"seen"}
