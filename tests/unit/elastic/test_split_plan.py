"""Plans of splits, and their transactions in etcd: which of two that compete succeeds, and what is left."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Delete, KeyValue, Put, TxnCheckpoint
from broadsheet.consumer.elastic.family import Ownership, check_family, is_fork
from broadsheet.consumer.elastic.flip import (
    Flip,
    HeldKey,
    Prepared,
    begin_txn,
    cancel_txn,
    flip_txn,
    hold_txn,
    progress_txn,
    release_txn,
)
from broadsheet.consumer.elastic.fork import (
    ForkHold,
    ForkPhase,
    ForkRecord,
    attempt_of_fork,
    decode_fork,
    encode_fork,
    encode_hold,
    fork_key,
    hold_key,
    mark_of,
)
from broadsheet.consumer.elastic.split_plan import SplitPlan, SplitWish, cut_points, plan_split
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.allocator.kernel.etcd import FakeEtcd
from broadsheet.wire.key_range import KeyRange
from broadsheet.wire.labels import RECOVERY_LOG_OF, label_set, value_of
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.key_space_values import KEYS

PARENT = "shard-1"
HOLD = ForkHold(child="shard-1-0800", attempt="00" * 8)
OTHER = ForkHold(child="shard-1-0800", attempt="11" * 8)


def _parent(**fields: object) -> ShardSpec:
    spec = ShardSpec(
        id=PARENT,
        recovery_log_prefix="logs",
        hint_prefix="/hints",
        sources=[ShardSpec.Source(journal="in/a")],
        labels=label_set(("team", "a"), (RECOVERY_LOG_OF, "/old")),
    )
    spec.max_txn_duration.FromSeconds(1)
    for name, value in fields.items():
        setattr(spec, name, value)
    return spec


def _plan(at_group: int | None = None) -> SplitPlan:
    return plan_split(_parent(), SplitWish(at_group=at_group), ids={PARENT}, members=())


def test_plan_of_a_split_divides_the_parents_range_and_names_a_fork_of_it() -> None:
    """The child has the parent's settings and labels, but no former owner's name; both together are a whole family."""
    plan = _plan()

    assert (plan.kept, plan.given) == (KeyRange(0, 2048), KeyRange(2048, 4096))
    assert plan.child.id == HOLD.child
    assert is_fork(plan.child)
    assert value_of(plan.child.labels, "team") == "a"
    assert not value_of(plan.child.labels, RECOVERY_LOG_OF)
    assert value_of(plan.parent.labels, RECOVERY_LOG_OF) == "/old"
    check_family([plan.parent, plan.child])


@pytest.mark.parametrize(
    ("parent", "wish", "problem"),
    [
        pytest.param(_parent(), SplitWish(at_group=4096), "expected a group inside", id="behind"),
        pytest.param(_parent(), SplitWish(child=PARENT), "expected the id of a new", id="taken"),
        pytest.param(_parent(), SplitWish(child="x"), "child", id="no-id"),
        pytest.param(_parent(disable=True), SplitWish(), "paused", id="paused"),
        pytest.param(
            _parent(recovery_log_prefix="", hint_prefix=""),
            SplitWish(),
            "recovery log",
            id="no-log",
        ),
        pytest.param(_plan().child, SplitWish(), "is a fork", id="fork"),
    ],
)
def test_split_that_cannot_be_planned_is_refused_with_the_reason(
    parent: ShardSpec, wish: SplitWish, problem: str
) -> None:
    """Nothing may be half begun: each wrong wish is told before anything is written."""
    with pytest.raises(ValidationError, match=problem):
        plan_split(parent, wish, ids={PARENT}, members=())


@pytest.mark.parametrize(
    ("at_group", "median_group", "cut"),
    [(None, 0, 2048), (None, 700, 700), (5, 700, 5), (None, 4096, 2048)],
)
def test_split_without_a_place_is_at_the_median_of_load(
    at_group: int | None, median_group: int, cut: int
) -> None:
    """A hot range is halved by rows; what was measured of another range, or not at all, gives the middle."""
    wish = SplitWish(at_group=at_group, median_group=median_group)
    plan = plan_split(_parent(), wish, ids={PARENT}, members=())
    assert (plan.kept.end, plan.given.begin) == (cut, cut)


def test_second_split_of_a_parent_is_refused_until_the_first_is_over() -> None:
    """One mark and one hold at a time."""
    with pytest.raises(ValidationError, match="being split already"):
        plan_split(_plan().parent, SplitWish(at_group=5), ids={PARENT}, members=[_plan().child])


def test_cut_points_divide_a_range_into_parts_of_one_size() -> None:
    """`--into N` splits at these, the last first."""
    assert cut_points(KeyRange(0, 4096), 4) == [1024, 2048, 3072]
    assert cut_points(KeyRange(10, 13), 3) == [11, 12]
    for parts in (1, 4):
        with pytest.raises(ValidationError):
            cut_points(KeyRange(10, 13), parts)


def test_attempt_of_a_fork_is_the_mark_that_names_the_shard() -> None:
    """A child's log has the marks of its parent's splits, too, and those of attempts that failed before."""
    properties = {mark_of("aa"): "/items/other", mark_of("bb"): "/items/mine", "/x": "/items/mine"}
    assert attempt_of_fork(properties, "/items/mine") == "bb"
    assert attempt_of_fork(properties, "/items/parent") == ""


class Etcd:
    """An etcd in memory with a parent, its primary's assignment, and a split that has begun."""

    def __init__(self) -> None:
        self._etcd = FakeEtcd()
        self.plan = _plan()

    async def begin(self) -> Etcd:
        """Store the parent, both assignments, and begin."""
        for key in (b"assign/parent", b"assign/child"):
            await self._etcd.txn((), (Put(key, b""),))
        await self._etcd.txn((), (Put(KEYS.item(ItemId(PARENT)), _parent().SerializeToString()),))
        revision = (await self.kv(KEYS.item(ItemId(PARENT)))).mod_revision
        assert await self.does(
            begin_txn(self.plan, KEYS, parent_revision=revision, family_revision=0)
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

    async def spec(self, shard_id: str) -> ShardSpec:
        """Return a spec."""
        return ShardSpec.FromString((await self.kv(KEYS.item(ItemId(shard_id)))).value)

    async def hold(self, hold: ForkHold = HOLD) -> TxnCheckpoint:
        """Return the parent's rest."""
        child = await self.kv(KEYS.item(ItemId(HOLD.child)))
        return hold_txn(
            KEYS,
            PARENT,
            assignment=await self.held(b"assign/parent"),
            child_revision=child.mod_revision,
            hold=hold,
        )

    async def flip(self, hold: ForkHold = HOLD) -> TxnCheckpoint:
        """Return the fork's commit, as of now."""
        parent = await self.kv(KEYS.item(ItemId(PARENT)))
        child = await self.kv(KEYS.item(ItemId(HOLD.child)))
        return flip_txn(
            Flip(
                parent=ShardSpec.FromString(parent.value),
                parent_revision=parent.mod_revision,
                child=ShardSpec.FromString(child.value),
                child_revision=child.mod_revision,
                child_assignment=await self.held(b"assign/child"),
                prepared=Prepared(assignment=await self.held(b"assign/parent"), hold=hold),
                hints=b"hints",
            ),
            KEYS,
        )

    async def cancel(self) -> TxnCheckpoint:
        """Return the end of the split before its commit, as of now."""
        child = await self.kv(KEYS.item(ItemId(HOLD.child)))
        return cancel_txn(ShardSpec.FromString(child.value), child.mod_revision, PARENT, KEYS)

    async def touch(self, key: bytes) -> None:
        """Write a key once more with the same content."""
        await self._etcd.txn((), (Put(key, (await self.kv(key)).value),))

    def close(self) -> None:
        """Close it."""
        self._etcd.close()


async def test_of_flip_release_and_cancel_one_alone_succeeds_in_any_order() -> None:
    """The hold is the only arbiter: whatever comes first decides, and the ranges divide all keys after each."""
    for order in itertools.permutations(("flip", "release", "cancel")):
        etcd = await Etcd().begin()
        assert await etcd.does(await etcd.hold())
        made = {
            "flip": await etcd.flip(),
            "release": release_txn(KEYS, PARENT, encode_hold(HOLD)),
            "cancel": await etcd.cancel(),
        }
        succeeded = [name for name in order if await etcd.does(made[name])]

        # A cancellation is possible behind a release: the child is a fork still.
        expected = {"flip": ["flip"], "release": ["release", "cancel"], "cancel": ["cancel"]}
        assert succeeded == expected[order[0]], order
        assert not await etcd.has(hold_key(KEYS.root, PARENT))
        members = [await etcd.spec(PARENT)]
        if "flip" in succeeded:
            members.append(await etcd.spec(HOLD.child))
            assert not is_fork(members[1])
            assert await etcd.has(b"/hints/shard-1-0800.primary")
        else:
            assert not await etcd.has(KEYS.item(ItemId(HOLD.child)))
            assert not await etcd.has(fork_key(KEYS.root, HOLD.child))
        check_family(members)
        etcd.close()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(b"assign/child", id="the-childs-assignment"),
        pytest.param(b"assign/parent", id="the-parents-primary"),
    ],
)
async def test_flip_fails_once_an_assignment_is_another_life(changed: bytes) -> None:
    """A successor of the parent has all keys again, and one of the child follows anew: neither may be overtaken."""
    etcd = await Etcd().begin()
    assert await etcd.does(await etcd.hold())
    flip = await etcd.flip()
    assert await etcd.does(TxnCheckpoint((), (Delete(changed),)))
    assert await etcd.does(TxnCheckpoint((), (Put(changed, b""),)))

    assert not await etcd.does(flip)
    etcd.close()


@pytest.mark.parametrize("shard_id", [PARENT, HOLD.child])
async def test_flip_fails_if_a_spec_was_applied_meanwhile(shard_id: str) -> None:
    """It would overwrite what the user changed."""
    etcd = await Etcd().begin()
    assert await etcd.does(await etcd.hold())
    flip = await etcd.flip()
    await etcd.touch(KEYS.item(ItemId(shard_id)))

    assert not await etcd.does(flip)
    assert Ownership.of(await etcd.spec(PARENT)).owned.is_all
    etcd.close()


async def test_flip_of_an_attempt_fails_while_the_parent_rests_for_another_one() -> None:
    """An answer that came late belongs to a mark behind which the parent went on."""
    etcd = await Etcd().begin()
    assert await etcd.does(await etcd.hold())
    assert not await etcd.does(await etcd.hold(OTHER)), "one at a time"
    assert await etcd.does(release_txn(KEYS, PARENT, encode_hold(HOLD)))
    assert not await etcd.does(release_txn(KEYS, PARENT, encode_hold(HOLD)))
    assert await etcd.does(await etcd.hold(OTHER))

    assert not await etcd.does(await etcd.flip(HOLD))
    assert await etcd.does(await etcd.flip(OTHER))
    etcd.close()


async def test_parent_does_not_rest_for_a_split_that_was_cancelled() -> None:
    """A request that was under way would leave a hold that nobody deletes."""
    etcd = await Etcd().begin()
    hold = await etcd.hold()
    assert await etcd.does(await etcd.cancel())

    assert not await etcd.does(hold)
    etcd.close()


async def test_record_of_a_split_goes_once_both_shards_have_removed_foreign_rows() -> None:
    """No key of a finished split remains."""
    etcd = await Etcd().begin()
    key = fork_key(KEYS.root, HOLD.child)
    assert decode_fork((await etcd.kv(key)).value).phase is ForkPhase.FOLLOWING
    record = ForkRecord(parent=PARENT, begin=2048, end=4096, phase=ForkPhase.PURGING)
    for purged in ((PARENT,), (PARENT, HOLD.child)):
        after = msgspec.structs.replace(record, purged=purged)
        assert decode_fork(encode_fork(after)) == after
        assert await etcd.does(
            progress_txn(
                KEYS, HOLD.child, await etcd.kv(key), after, await etcd.held(b"assign/child")
            )
        )
    assert not await etcd.has(key)
    etcd.close()


def test_child_does_not_continue_a_log_of_its_parents_history() -> None:
    """A shard that absorbed the one it was once a fork of has state in that one's log: a child of the same id would
    record behind what it is to be recovered from.
    """
    history = ["logs/shard-1", "logs/shard-1-0800", "logs/shard-1-0800-2"]

    def planned(child: str = "") -> str:
        wish = SplitWish(at_group=0x800, child=child)
        return plan_split(_parent(), wish, ids={PARENT}, members=(), history=history).child.id

    assert planned() == "shard-1-0800-3"
    assert planned("another") == "another"
    with pytest.raises(ValidationError, match="from recovery log logs/shard-1-0800, which"):
        planned("shard-1-0800")


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


def test_parts_have_about_one_load_each_where_it_was_measured() -> None:
    """Cuts are at quantiles of the load, between two of them in proportion; each part has a group at least."""
    owned = KeyRange(0, 4096)
    busy_below = [*range(64, 64 * 13, 64), 1024, 2048, 3072]

    assert cut_points(owned, 2, busy_below) == [512]
    assert cut_points(owned, 4, busy_below) == [256, 512, 768]
    assert cut_points(owned, 3, busy_below) == [64 * 5 + 64 // 3, 64 * 10 + 64 * 2 // 3]
    assert (
        cut_points(owned, 4) == cut_points(owned, 4, [5000, *busy_below[1:]]) == [1024, 2048, 3072]
    )
    assert cut_points(KeyRange(8, 13), 4, [10] * 15) == [10, 11, 12]
