"""How a key space changes with what the watch and reloads deliver: values in, values out, no server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from itertools import permutations

import pytest

from broadsheet.allocator.errors import ClusterMismatchError, KeySpaceError
from broadsheet.allocator.etcd.api import (
    Header,
    KeyDeleted,
    KeyPut,
    LeaseLife,
    RangeResult,
    TxnResult,
    WatchBatch,
    WatchEvent,
    mod_revision_of,
)
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.state import Observation
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Compare, KeyValue, LeaseId, Operation
from tests.support.memory_cluster import ValueConsistency
from tests.support.plain_values import PlainDecoder, PlainItem, PlainMember

KEYS = Keys("/r")
ITEM, MEMBER = ItemId("item"), MemberId("zone", "member")
ITEM_KEY, MEMBER_KEY = KEYS.item(ITEM), KEYS.member(MEMBER)
ASSIGNMENT_KEY = KEYS.assignment(ITEM, MEMBER, 0)


class SilentEtcd:
    """An etcd that these tests never ask: contents and events are handed to the key space directly."""

    async def get_range(
        self, key: bytes, range_end: bytes = b"", *, revision: int = 0
    ) -> RangeResult:
        """Refuse."""
        raise AssertionError("not asked in these tests")

    async def newest_revision(self, prefix: bytes) -> int:
        """Refuse."""
        raise AssertionError("not asked in these tests")

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Refuse."""
        raise AssertionError("not asked in these tests")

    async def lease_grant(self, ttl_seconds: int) -> LeaseId:
        """Refuse."""
        raise AssertionError("not asked in these tests")

    async def lease_revoke(self, lease: LeaseId) -> bool:
        """Refuse."""
        raise AssertionError("not asked in these tests")

    async def lease_keep_alive_once(self, lease: LeaseId) -> int:
        """Refuse."""
        raise AssertionError("not asked in these tests")

    async def lease_life(self, lease: LeaseId) -> LeaseLife | None:
        """Refuse."""
        raise AssertionError("not asked in these tests")

    async def watch(
        self, prefix: bytes, *, start_revision: int
    ) -> AsyncGenerator[WatchBatch, None]:
        """Deliver nothing."""
        yield WatchBatch(header=header(start_revision), events=())


def header(revision: int, *, cluster_id: int = 7) -> Header:
    """A header of the tests' cluster."""
    return Header(cluster_id=cluster_id, member_id=1, revision=revision, raft_term=1)


def kv(
    key: bytes, value: bytes, revision: int, *, created: int | None = None, version: int = 1
) -> KeyValue:
    """A key as etcd has it."""
    return KeyValue(
        key=key,
        value=value,
        create_revision=revision if created is None else created,
        mod_revision=revision,
        version=version,
        lease=0,
    )


def batch(*events: WatchEvent) -> WatchBatch:
    """A batch that ends at its last event."""
    return WatchBatch(header=header(mod_revision_of(events[-1])), events=events)


def loaded(*kvs: KeyValue, revision: int = 10) -> KeySpace:
    """A key space that holds `kvs` as of a revision."""
    key_space = KeySpace(SilentEtcd(), KEYS, PlainDecoder())
    key_space.replace(RangeResult(header=header(revision), kvs=kvs))
    return key_space


def contents(key_space: KeySpace) -> dict[bytes, tuple[object, int]]:
    """Each decoded key's value and revision."""
    entities: Iterable[object] = (
        *key_space.items.values(),
        *key_space.members.values(),
        *key_space.assignments.values(),
    )
    return {each.kv.key: (each.value, each.kv.mod_revision) for each in entities}  # type: ignore[attr-defined] # all three have both


def test_load_decodes_items_members_and_assignments() -> None:
    """Each kind of key lands in its own map, and the header is the revision loaded even if no key is as new."""
    key_space = loaded(
        kv(ASSIGNMENT_KEY, b"here", 4), kv(ITEM_KEY, b"R=2", 3), kv(MEMBER_KEY, b"limit=5", 2)
    )

    assert key_space.items[ITEM].value == PlainItem(2)
    assert key_space.members[MEMBER].value == PlainMember(5)
    assert key_space.assignments[ITEM, MEMBER, 0].value == "here"
    assert key_space.header == header(10)


def test_assignments_of_an_item_are_sorted_and_leave_neighbours_out() -> None:
    """Ids that are prefixes of one another, and slots beyond 9, do not confuse the join."""
    other = MemberId("zone", "other")
    wanted = [
        KEYS.assignment(ItemId("a"), MEMBER, 2),
        KEYS.assignment(ItemId("a"), MEMBER, 10),
        KEYS.assignment(ItemId("a"), other, 0),
    ]
    neighbours = [
        KEYS.assignment(ItemId("a-b"), MEMBER, 0),
        KEYS.assignment(ItemId("Z"), MEMBER, 0),
        KEYS.assignment(ItemId("a/b"), MEMBER, 0),
    ]
    key_space = loaded(*(kv(key, b"", 3) for key in sorted([*neighbours, *wanted])))

    assert [each.kv.key for each in key_space.assignments_of(ItemId("a"))] == wanted
    assert key_space.assignments_of(ItemId("b")) == []


def test_apply_puts_and_deletes_in_order_in_one_step() -> None:
    """Three batches at once: observers run once, and see the end."""
    key_space = loaded(kv(ITEM_KEY, b"R=1", 3))
    seen: list[tuple[str, int]] = []
    key_space.observe(ObserverStage.WAKE, lambda: seen.append(("first", key_space.header.revision)))
    key_space.observe(ObserverStage.WAKE, lambda: seen.append(("second", len(key_space.items))))

    key_space.apply(
        [
            batch(KeyPut(kv(ITEM_KEY, b"R=2", 11, created=3, version=2))),
            batch(KeyDeleted(ITEM_KEY, 12), KeyPut(kv(MEMBER_KEY, b"limit=1", 12))),
            batch(KeyPut(kv(ITEM_KEY, b"R=3", 13))),
        ]
    )

    assert seen == [("first", 13), ("second", 1)]
    assert contents(key_space) == {
        ITEM_KEY: (PlainItem(3), 13),
        MEMBER_KEY: (PlainMember(1), 12),
    }


def test_apply_delete_of_unknown_key_changes_nothing() -> None:
    """A key that was never decodable, or never seen, may still be deleted."""
    key_space = loaded()

    key_space.apply([batch(KeyDeleted(ITEM_KEY, 11), KeyDeleted(b"/r/strange", 11))])

    assert contents(key_space) == {}
    assert key_space.header.revision == 11


def test_apply_progress_alone_moves_no_revision_and_tells_nobody() -> None:
    """The header is comparable between processes only if it counts changes below the root."""
    key_space = loaded()
    told: list[int] = []
    key_space.observe(ObserverStage.WAKE, lambda: told.append(1))

    key_space.apply([WatchBatch(header=header(99), events=())])

    assert key_space.header.revision == 10
    assert told == []


@pytest.mark.parametrize("value", [b"junk", b"R="])
def test_undecodable_new_key_stays_out_but_its_revision_is_known(value: bytes) -> None:
    """Never act on what cannot be read; but a transaction may compare it."""
    key_space = loaded()

    key_space.apply([batch(KeyPut(kv(ITEM_KEY, value, 11)))])

    assert contents(key_space) == {}
    assert "expected R=number" in key_space.undecodable[ITEM_KEY]
    known = key_space.kv_or_none(ITEM_KEY)
    assert known is not None
    assert (known.mod_revision, known.value) == (11, value)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (ITEM_KEY, b"R=1", b"junk"),
        (MEMBER_KEY, b"limit=1", b"limit=x"),
        (ASSIGNMENT_KEY, b"good", b"bad"),
    ],
)
def test_undecodable_change_keeps_the_last_good_value_at_the_true_revision(
    key: bytes, good: bytes, bad: bytes
) -> None:
    """A bad write must not make every later transaction that compares the key fail; a good one heals it."""
    key_space = loaded(kv(key, good, 3))
    before = contents(key_space)[key][0]

    key_space.apply([batch(KeyPut(kv(key, bad, 11, created=3, version=2)))])

    assert contents(key_space) == {key: (before, 11)}
    assert list(key_space.undecodable) == [key]

    key_space.apply([batch(KeyPut(kv(key, good, 12, created=3, version=3)))])

    assert contents(key_space) == {key: (before, 12)}
    assert key_space.undecodable == {}


def test_undecodable_outcome_does_not_depend_on_batching() -> None:
    """Good, bad, deleted, made again badly: one batch or four, every process must hold the same."""
    events: list[WatchEvent] = [
        KeyPut(kv(ITEM_KEY, b"R=2", 11, created=3, version=2)),
        KeyPut(kv(ITEM_KEY, b"junk", 12, created=3, version=3)),
        KeyPut(kv(MEMBER_KEY, b"limit=2", 13)),
        KeyDeleted(MEMBER_KEY, 14),
        KeyPut(kv(MEMBER_KEY, b"limit=?", 15)),
    ]
    start = kv(ITEM_KEY, b"R=1", 3)
    at_once, one_by_one = loaded(start), loaded(start)

    at_once.apply([batch(*events)])
    for event in events:
        one_by_one.apply([batch(event)])

    assert contents(at_once) == contents(one_by_one) == {ITEM_KEY: (PlainItem(2), 12)}
    assert dict(at_once.undecodable) == dict(one_by_one.undecodable)


@pytest.mark.parametrize(
    "key",
    [b"/r/other/x", b"/r/items/a#b", b"/r/assign/a#z#m#00", b"/r/assign/a#z#m", b"/r/items/\xff"],
)
def test_undecodable_keys_are_counted_and_can_go(key: bytes) -> None:
    """Strangers below the root are listed, never decoded, and vanish with their deletion."""
    key_space = loaded(kv(key, b"R=1", 3))

    assert contents(key_space) == {}
    assert list(key_space.undecodable) == [key]

    key_space.apply([batch(KeyDeleted(key, 11))])

    assert key_space.undecodable == {}


def test_replace_applies_the_difference_and_tells_observers_once() -> None:
    """After lost history: gone keys go, changed ones change, new ones come, what is equal stays the same object."""
    gone, same = KEYS.item(ItemId("gone")), KEYS.item(ItemId("same"))
    key_space = loaded(kv(gone, b"R=1", 2), kv(ITEM_KEY, b"R=1", 3), kv(same, b"R=1", 4))
    same_object = key_space.items[ItemId("same")]
    told: list[dict[bytes, tuple[object, int]]] = []
    key_space.observe(ObserverStage.WAKE, lambda: told.append(contents(key_space)))

    key_space.replace(
        RangeResult(
            header=header(50),
            kvs=(
                kv(ITEM_KEY, b"R=9", 40, created=3, version=5),
                kv(same, b"R=1", 4),
                kv(MEMBER_KEY, b"limit=1", 45),
            ),
        )
    )

    assert told == [
        {
            ITEM_KEY: (PlainItem(9), 40),
            same: (PlainItem(1), 4),
            MEMBER_KEY: (PlainMember(1), 45),
        }
    ]
    assert key_space.items[ItemId("same")] is same_object
    assert key_space.header == header(50)


def test_replace_drops_the_old_value_of_a_key_made_anew_badly() -> None:
    """A key deleted and made again while we looked away is another key: its predecessor's value must not live on."""
    key_space = loaded(kv(ITEM_KEY, b"R=1", 3))

    key_space.replace(RangeResult(header=header(50), kvs=(kv(ITEM_KEY, b"junk", 40),)))

    assert contents(key_space) == {}
    assert list(key_space.undecodable) == [ITEM_KEY]


@pytest.mark.parametrize("revision", [9, 10])
def test_apply_of_revisions_that_do_not_grow_is_fatal(revision: int) -> None:
    """Etcd never repeats itself: if it seems to, nothing it says can be relied on."""
    key_space = loaded()

    with pytest.raises(KeySpaceError, match="repeated itself"):
        key_space.apply([batch(KeyPut(kv(ITEM_KEY, b"R=1", revision)))])


def test_apply_of_revisions_that_fall_within_a_batch_is_fatal() -> None:
    """Nor does it go back within what it sends at once."""
    key_space = loaded()
    events = (KeyPut(kv(ITEM_KEY, b"R=1", 12)), KeyDeleted(ITEM_KEY, 11))

    with pytest.raises(KeySpaceError, match="went back"):
        key_space.apply([batch(*events)])


def test_apply_from_another_cluster_is_fatal() -> None:
    """Revisions of two clusters cannot be compared."""
    key_space = loaded()

    with pytest.raises(ClusterMismatchError):
        key_space.apply([WatchBatch(header=header(11, cluster_id=8), events=())])


def test_replace_with_an_older_revision_is_fatal() -> None:
    """A reload may not undo what observers acted on."""
    key_space = loaded()

    with pytest.raises(KeySpaceError, match="went back"):
        key_space.replace(RangeResult(header=header(9), kvs=()))


@pytest.mark.parametrize("registered", list(permutations(ObserverStage)))
def test_observers_registered_in_any_order_run_in_the_order_of_their_stages(
    registered: tuple[ObserverStage, ...],
) -> None:
    """Parts may be composed in any order: an index is never read before it is brought up to date."""
    key_space = loaded()
    ran: list[ObserverStage] = []
    for stage in (*registered, *reversed(registered)):
        key_space.observe(stage, partial(ran.append, stage))

    key_space.apply([batch(KeyPut(kv(ITEM_KEY, b"R=1", 11)))])

    assert ran == [stage for stage in ObserverStage for _ in range(2)]


@pytest.mark.parametrize("woken_first", [False, True])
def test_parts_of_the_leader_constructed_in_any_order_derive_before_a_wake(
    *, woken_first: bool
) -> None:
    """A task that is woken for a change sees the leader's state with the change, also if it was registered first."""
    key_space = loaded()
    seen: list[int] = []
    made: list[Observation] = []

    def observation() -> None:
        made.append(
            Observation(
                key_space,
                member_id=MEMBER,
                consistency=ValueConsistency(),
                is_failed=lambda _: False,
                replace_failed_after_seconds=60.0,
            )
        )
        assert made[0].derived.item_count == 0

    def woken() -> None:
        key_space.observe(ObserverStage.WAKE, lambda: seen.append(made[0].derived.item_count))

    for part in (woken, observation) if woken_first else (observation, woken):
        part()
    key_space.apply([batch(KeyPut(kv(ITEM_KEY, b"R=1", 11)))])

    assert seen == [1]


async def test_waiters_wake_after_the_observers_and_at_their_revision_only() -> None:
    """Who waits sees derived state; who waits for later goes on waiting."""
    key_space = loaded()
    order: list[str] = []
    key_space.observe(ObserverStage.WAKE, lambda: order.append("observer"))

    async def wait(revision: int) -> None:
        await key_space.wait_for_revision(revision)
        order.append(f"waiter {revision}")

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(wait(11))
        group.create_task(wait(12))
        update = group.create_task(key_space.wait_for_update())
        await asyncio.sleep(0)
        key_space.apply([batch(KeyPut(kv(ITEM_KEY, b"R=1", 11)))])
        await update
        await key_space.wait_for_revision(11)
        await key_space.wait_for_update(after_revision=10)
        assert order == ["observer", "waiter 11"]
        key_space.apply([batch(KeyDeleted(ITEM_KEY, 12))])

    assert order == ["observer", "waiter 11", "observer", "waiter 12"]
