"""Plans of merges, and their transactions in etcd: which of those that compete succeeds, and what is left."""

from __future__ import annotations

import itertools

import pytest

from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Delete, KeyValue, Put, TxnCheckpoint
from broadsheet.consumer.elastic.family import Ownership, absorbed_by, check_change, check_family
from broadsheet.consumer.elastic.flip import (
    HeldKey,
    MergeFlip,
    Prepared,
    begin_merge_txn,
    cancel_merge_txn,
    forget_txn,
    hold_txn,
    merge_flip_txn,
    merge_progress_txn,
    release_txn,
)
from broadsheet.consumer.elastic.fork import (
    ForkHold,
    attempt_of_fork,
    encode_hold,
    hold_key,
    mark_of,
)
from broadsheet.consumer.elastic.merge import (
    MergePhase,
    MergeRecord,
    absorbed_mark,
    decode_merge,
    merge_key,
)
from broadsheet.consumer.elastic.merge_plan import MergePlan, joined, plan_merge
from broadsheet.consumer.elastic.split_plan import SplitWish, plan_split
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.wire.key_range import ALL_KEYS, KeyRange, range_labels
from broadsheet.wire.labels import ABSORBS, FAMILY, label_set, union
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from tests.support.key_space_values import KEYS

A, B, C = "shard-a", "shard-b", "shard-c"
HOLD = ForkHold(child=A, attempt="00" * 8)
OTHER = ForkHold(child=A, attempt="11" * 8)
RANGES = {A: KeyRange(0, 1024), B: KeyRange(1024, 2048), C: KeyRange(2048, 4096)}


def _spec(shard_id: str, family: str = A) -> ShardSpec:
    spec = ShardSpec(
        id=shard_id,
        recovery_log_prefix="logs",
        hint_prefix="/hints",
        sources=[ShardSpec.Source(journal="in/a")],
        labels=label_set((FAMILY, family), *range_labels(RANGES[shard_id])),
    )
    spec.max_txn_duration.FromSeconds(1)
    return spec


FAMILY_OF_A = [_spec(A), _spec(B), _spec(C)]


def _plan(survivor: str = "") -> MergePlan:
    return plan_merge(_spec(A), _spec(B), survivor=survivor, others=FAMILY_OF_A, splitting=())


@pytest.mark.parametrize(("survivor", "goes"), [("", B), (A, B), (B, A)])
def test_plan_of_a_merge_joins_the_ranges_whichever_survives(survivor: str, goes: str) -> None:
    """The survivor says whom it absorbs; until the flip both keep their ranges, so the family is whole."""
    plan = _plan(survivor)
    assert (plan.absorbed.id, plan.owned) == (goes, KeyRange(0, 2048))
    assert absorbed_by(plan.survivor) == goes
    assert Ownership.of(plan.survivor).owned == RANGES[plan.survivor.id]
    check_family([plan.survivor, plan.absorbed, _spec(C)])


def _changed(shard_id: str, **fields: object) -> ShardSpec:
    spec = _spec(shard_id)
    for name, value in fields.items():
        setattr(spec, name, value)
    return spec


@pytest.mark.parametrize(
    ("first", "second", "survivor", "splitting", "problem"),
    [
        (_spec(A), _spec(A), "", (), "expected another shard"),
        (_spec(A), _spec(C), "", (), "are not neighbours"),
        (_spec(A), _spec(B), C, (), "expected shard-a or shard-b"),
        (_spec(A), _spec(B, "others"), "", (), "is of family others"),
        (_spec(A), _changed(B, disable=True), "", (), "is paused"),
        (_changed(A, recovery_log_prefix=""), _spec(B), "", (), "has none"),
        (_spec(A), _spec(B), "", (B,), "has a part in a split"),
        (
            _spec(A),
            plan_split(_spec(B), SplitWish(), ids={B}, members=()).child,
            "",
            (),
            "is a fork of shard-b",
        ),
    ],
)
def test_merge_that_cannot_be_planned_is_refused_with_the_reason(
    first: ShardSpec, second: ShardSpec, survivor: str, splitting: tuple[str, ...], problem: str
) -> None:
    """Nothing may be half begun: each wrong wish is told before anything is written."""
    with pytest.raises(ValidationError, match=problem):
        plan_merge(first, second, survivor=survivor, others=FAMILY_OF_A, splitting=splitting)


@pytest.mark.parametrize("pair", [(A, B), (B, C)])
def test_shard_has_a_part_in_one_merge_or_split_at_a_time(pair: tuple[str, str]) -> None:
    """One hold and one mark at a time, and one range that changes."""
    members = [_plan().survivor, _spec(B), _spec(C)]
    by_id = {each.id: each for each in members}
    with pytest.raises(ValidationError, match="being merged with"):
        plan_merge(*(by_id[each] for each in pair), others=members, splitting=())
    with pytest.raises(ValidationError, match="being merged with"):
        plan_split(by_id[B], SplitWish(), ids=set(by_id), members=members)


def test_apply_neither_begins_nor_ends_a_merge() -> None:
    """Where state is decides who owns keys: a file that lacks the label is refused, as is one that brings it."""
    survivor = _plan().survivor
    members = {A: [survivor, _spec(B), _spec(C)]}
    for stored, wanted in ((survivor, _spec(A)), (_spec(A), survivor)):
        change = ApplyRequest.Change(upsert=wanted)
        with pytest.raises(ValidationError, match="to keep keys"):
            check_change([change], {A: stored}, members)
    with pytest.raises(ValidationError, match=ABSORBS):
        check_family([survivor, _gap()])


def _gap() -> ShardSpec:
    spec = _spec(C)
    spec.labels.CopyFrom(union(spec.labels, label_set(*range_labels(KeyRange(1024, 4096)))))
    return spec


def test_ranges_are_joined_in_either_order() -> None:
    """The survivor may be the upper one."""
    assert joined(KeyRange(5, 9), KeyRange(0, 5)) == KeyRange(0, 9)
    assert joined(KeyRange(0, 5), KeyRange(5, 4096)) == ALL_KEYS


def test_mark_of_a_merge_makes_no_fork_of_the_survivor() -> None:
    """The absorbed shard's log may be a parent's later, of a shard with the survivor's name."""
    assert attempt_of_fork({mark_of("aa"): absorbed_mark("/items/a")}, "/items/a") == ""


class Etcd:
    """An etcd in memory with two shards, their primaries' assignments, and a merge that has begun."""

    def __init__(self) -> None:
        self._etcd = FakeEtcd()

    async def begin(self) -> Etcd:
        """Store both, and begin."""
        plan = _plan()
        for key in (b"assign/survivor", b"assign/absorbed"):
            await self._etcd.txn((), (Put(key, b""),))
        for shard_id in (A, B):
            put = Put(KEYS.item(ItemId(shard_id)), _spec(shard_id).SerializeToString())
            await self._etcd.txn((), (put,))
        assert await self.does(
            begin_merge_txn(
                plan,
                KEYS,
                survivor_revision=(await self.kv(KEYS.item(ItemId(A)))).mod_revision,
                absorbed_revision=(await self.kv(KEYS.item(ItemId(B)))).mod_revision,
                family_revision=0,
            )
        )
        return self

    async def does(self, checkpoint: TxnCheckpoint) -> bool:
        """Perform a transaction; return whether it succeeded."""
        return (await self._etcd.txn(checkpoint.compares, checkpoint.operations)).succeeded

    async def has(self, key: bytes) -> bool:
        """Return whether a key is there."""
        return bool((await self._etcd.get_range(key)).kvs)

    async def kv(self, key: bytes) -> KeyValue:
        """Return a key that is there."""
        return (await self._etcd.get_range(key)).kvs[0]

    async def held(self, key: bytes) -> HeldKey:
        """Return an assignment as its holder knows it."""
        return HeldKey.of(await self.kv(key))

    async def survivor(self) -> ShardSpec:
        """Return the survivor's spec."""
        return ShardSpec.FromString((await self.kv(KEYS.item(ItemId(A)))).value)

    async def hold(self, hold: ForkHold = HOLD) -> TxnCheckpoint:
        """Return the absorbed shard's rest."""
        return hold_txn(
            KEYS,
            B,
            assignment=await self.held(b"assign/absorbed"),
            child_revision=(await self.kv(KEYS.item(ItemId(A)))).mod_revision,
            hold=hold,
        )

    async def flip(self, hold: ForkHold = HOLD) -> TxnCheckpoint:
        """Return the merge's commit, as of now."""
        survivor = await self.kv(KEYS.item(ItemId(A)))
        absorbed = await self.kv(KEYS.item(ItemId(B)))
        return merge_flip_txn(
            MergeFlip(
                survivor=ShardSpec.FromString(survivor.value),
                survivor_revision=survivor.mod_revision,
                survivor_assignment=await self.held(b"assign/survivor"),
                absorbed=ShardSpec.FromString(absorbed.value),
                absorbed_revision=absorbed.mod_revision,
                prepared=Prepared(assignment=await self.held(b"assign/absorbed"), hold=hold),
            ),
            KEYS,
        )

    async def cancel(self) -> TxnCheckpoint:
        """Return the end of the merge before its commit, as of now."""
        revision = (await self.kv(KEYS.item(ItemId(A)))).mod_revision
        return cancel_merge_txn(await self.survivor(), revision, KEYS)

    async def forget(self) -> TxnCheckpoint:
        """Return what a later life of the survivor does first."""
        return forget_txn(KEYS, A, B, await self.held(b"assign/survivor"))

    async def again(self, key: bytes) -> None:
        """Have a key be another life of itself."""
        value = (await self.kv(key)).value
        await self._etcd.txn((), (Delete(key),))
        await self._etcd.txn((), (Put(key, value),))

    def close(self) -> None:
        """Close it."""
        self._etcd.close()


async def test_of_flip_release_cancel_and_a_later_life_the_first_decides() -> None:
    """The hold is the only arbiter: the ranges divide all keys after each, and nothing is left of what is over."""
    for order in itertools.permutations(("flip", "release", "cancel", "forget")):
        etcd = await Etcd().begin()
        assert await etcd.does(await etcd.hold())
        made = {
            "flip": await etcd.flip(),
            "release": release_txn(KEYS, B, encode_hold(HOLD)),
            "cancel": await etcd.cancel(),
            "forget": await etcd.forget(),
        }
        succeeded = [name for name in order if await etcd.does(made[name])]

        # A later life may always look, and a cancellation is possible behind a release.
        assert ("flip" in succeeded) == (order[0] == "flip"), order
        assert ("cancel" in succeeded) == (order[0] != "flip"), order
        assert not await etcd.has(hold_key(KEYS.root, B))
        assert not await etcd.has(merge_key(KEYS.root, A))
        survivor = await etcd.survivor()
        assert not absorbed_by(survivor)
        has_absorbed = await etcd.has(KEYS.item(ItemId(B)))
        assert has_absorbed == (order[0] != "flip")
        assert Ownership.of(survivor).owned == (RANGES[A] if has_absorbed else KeyRange(0, 2048))
        etcd.close()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(b"assign/survivor", id="the-survivors-primary"),
        pytest.param(b"assign/absorbed", id="the-absorbed-shards-primary"),
        pytest.param(KEYS.item(ItemId(A)), id="the-survivors-spec"),
        pytest.param(KEYS.item(ItemId(B)), id="the-absorbed-shards-spec"),
    ],
)
async def test_flip_fails_once_something_that_it_relies_on_has_changed(changed: bytes) -> None:
    """A successor of either serves its keys from another place, and what a user applied must stay."""
    etcd = await Etcd().begin()
    assert await etcd.does(await etcd.hold())
    flip = await etcd.flip()
    await etcd.again(changed)

    assert not await etcd.does(flip)
    etcd.close()


async def test_flip_of_a_former_attempt_fails_behind_the_next_hold() -> None:
    """Its rows are of another mark."""
    etcd = await Etcd().begin()
    assert await etcd.does(await etcd.hold())
    assert await etcd.does(await etcd.forget())
    assert await etcd.does(await etcd.hold(OTHER))

    assert not await etcd.does(await etcd.flip(HOLD))
    assert await etcd.does(await etcd.flip(OTHER))
    etcd.close()


async def test_shard_does_not_rest_for_a_merge_that_was_cancelled() -> None:
    """A request that was under way would leave a hold that nobody deletes."""
    etcd = await Etcd().begin()
    hold = await etcd.hold()
    assert await etcd.does(await etcd.cancel())

    assert not await etcd.does(hold)
    etcd.close()


async def test_record_of_a_merge_is_written_by_the_survivors_primary_alone() -> None:
    """Another life's report is out of date."""
    etcd = await Etcd().begin()
    kv = await etcd.kv(merge_key(KEYS.root, A))
    record = decode_merge(kv.value)
    assert (record.absorbed, record.given, record.phase) == (B, RANGES[B], MergePhase.COPYING)
    after = MergeRecord(absorbed=B, begin=1024, end=2048, done_rows=7, left_rows=3)
    stale = await etcd.held(b"assign/survivor")
    await etcd.again(b"assign/survivor")
    assert not await etcd.does(merge_progress_txn(A, kv, after, stale))
    now = await etcd.held(b"assign/survivor")
    assert await etcd.does(merge_progress_txn(A, kv, after, now))
    assert decode_merge((await etcd.kv(merge_key(KEYS.root, A))).value) == after
    etcd.close()


@pytest.mark.parametrize("left_out", range(5))
async def test_flip_without_one_of_its_comparisons_commits_what_it_must_not(left_out: int) -> None:
    """Each comparison is needed: without it a change that it watches goes unnoticed."""
    etcd = await Etcd().begin()
    assert await etcd.does(await etcd.hold())
    flip = await etcd.flip()
    compares = [each for number, each in enumerate(flip.compares) if number != left_out]
    without = TxnCheckpoint(tuple(compares), flip.operations)
    changed = flip.compares[left_out].key
    value = (await etcd.kv(changed)).value
    assert await etcd.does(TxnCheckpoint((), (Delete(changed),)))
    assert await etcd.does(TxnCheckpoint((), (Put(changed, value + b" "),)))

    assert not await etcd.does(flip)
    assert await etcd.does(without)
    etcd.close()
