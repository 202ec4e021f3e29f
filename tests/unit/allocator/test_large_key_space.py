"""Loading very many keys: in parts, between which keep-alives go on, and with nothing to be seen before the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest

from broadsheet.allocator.etcd.api import (
    Header,
    KeyDeleted,
    KeyPut,
    RangeResult,
    WatchBatch,
    WatchEvent,
)
from broadsheet.allocator.key_space import DECODED_AT_ONCE, KeySpace
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.state import Observation
from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.allocator.state.alloc_state import Snapshot
from broadsheet.allocator.state.derived_state import PART_KEYS
from broadsheet.allocator.state.mirror import Mirror
from broadsheet.runtime.task_group import TaskGroup
from tests.support.plain_values import PlainDecoder
from tests.support.stepping_clock import SteppingClock
from tests.unit.allocator.test_key_space_apply import SilentEtcd

KEYS = Keys("/r")
MEMBERS = tuple(MemberId("z", f"m{number}") for number in range(4))
PARTS = 5


class ReadEtcd(SilentEtcd):
    """An etcd that answers one read of everything."""

    def __init__(self, kvs: list[KeyValue]) -> None:
        self._kvs = kvs

    async def get_range(
        self, key: bytes, range_end: bytes = b"", *, revision: int = 0
    ) -> RangeResult:
        """Return all keys."""
        return RangeResult(header=_header(1_000_000), kvs=tuple(self._kvs))


def _header(revision: int) -> Header:
    return Header(cluster_id=7, member_id=1, revision=revision, raft_term=1)


def _kv(key: bytes, value: bytes, revision: int, created: int | None = None) -> KeyValue:
    return KeyValue(
        key=key,
        value=value,
        create_revision=revision if created is None else created,
        mod_revision=revision,
        version=1,
        lease=0,
    )


def _cluster(items: int) -> list[KeyValue]:
    kvs = [_kv(KEYS.member(member_id), b"limit=100000", 1) for member_id in MEMBERS]
    for number in range(items):
        item_id = ItemId(f"item-{number:05}")
        kvs.append(_kv(KEYS.item(item_id), b"R=1", 2 + number))
        kvs.append(_kv(KEYS.assignment(item_id, MEMBERS[number % 4], 0), b"consistent", 2 + number))
    return sorted(kvs, key=lambda kv: kv.key)


@asynccontextmanager
async def _turns(look: Callable[[], object]) -> AsyncIterator[list[object]]:
    """Collect what another task sees, turn by turn."""
    seen: list[object] = []

    async def watch() -> None:
        while True:
            seen.append(look())
            await asyncio.sleep(0)

    async with TaskGroup() as group:
        group.start_soon(watch(), name="watch")
        yield seen
        group.stop()


async def test_other_tasks_have_turns_while_a_key_space_is_loaded() -> None:
    """100,000 shards take seconds: a member whose keep-alive waits for all of them loses its lease. Until the end, what
    others see is the state before, whole.
    """
    kvs = _cluster(DECODED_AT_ONCE * PARTS // 2)
    key_space = KeySpace(ReadEtcd(kvs), KEYS, PlainDecoder())

    async with _turns(lambda: (len(key_space.items), key_space.header.revision)) as seen:
        await key_space.load()

    assert len(seen) >= PARTS
    assert set(seen[: PARTS - 1]) == {(0, 0)}
    assert len(key_space.items) == DECODED_AT_ONCE * PARTS // 2
    assert len(key_space.changes.assignments) == len(key_space.items)


class _AllConsistent:
    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Rely on all."""
        return True

    def standby_value(self, primary: Assignment) -> bytes:
        """Return the value unchanged."""
        return primary.kv.value


def _observation(key_space: KeySpace) -> Observation:
    return Observation(
        key_space,
        member_id=MEMBERS[0],
        consistency=_AllConsistent(),
        is_failed=_is_failed,
        replace_failed_after_seconds=60.0,
    )


def _is_failed(assignment: Assignment) -> bool:
    return assignment.kv.value == b"failed"


async def test_other_tasks_have_turns_while_a_leader_looks_at_everything() -> None:
    """What it derives then is what it would have derived in one step, changes in between included."""
    key_space = KeySpace(ReadEtcd(_cluster(PART_KEYS * PARTS)), KEYS, PlainDecoder())
    await key_space.load()
    observation, clock = _observation(key_space), SteppingClock()
    changes = iter(_changes(key_space, Random(1)))

    def change() -> None:
        if batch := next(changes, None):
            key_space.apply([batch])

    async with _turns(change) as seen:
        await observation.prepare(clock)

    assert len(seen) >= 2 * PARTS
    whole, afresh = observation.whole(), _observation(key_space).whole()
    assert _facts(whole) == _facts(afresh)


def _changes(key_space: KeySpace, random: Random) -> list[WatchBatch]:
    """Return batches that put, change and delete keys all over the key space."""
    batches: list[WatchBatch] = []
    for step in range(2 * PARTS):
        revision = key_space.header.revision + 1 + step
        number = random.randrange(PART_KEYS * PARTS)
        item_id, member_id = ItemId(f"item-{number:05}"), MEMBERS[number % 4]
        events: list[WatchEvent] = [
            KeyDeleted(KEYS.item(item_id), revision),
            KeyDeleted(KEYS.assignment(item_id, member_id, 0), revision),
            KeyPut(_kv(KEYS.item(item_id), b"R=2", revision, created=2 + number)),
            KeyPut(_kv(KEYS.assignment(item_id, MEMBERS[3], 1), b"failed", revision)),
        ]
        event = random.choice(events)
        batches.append(WatchBatch(header=_header(revision), events=(event,)))
    return batches


def _facts(snapshot: Snapshot) -> tuple[object, ...]:
    """Return what a plan rests on, without the count of changes so far."""
    return (
        snapshot.items,
        snapshot.groups,
        snapshot.members,
        snapshot.loads,
        snapshot.item_slots,
        snapshot.limits,
    )


async def test_leadership_that_ends_meanwhile_leaves_nothing_half_seen() -> None:
    """What was derived is forgotten with it; the next leadership looks at everything again."""
    key_space = KeySpace(ReadEtcd(_cluster(PART_KEYS * 2)), KEYS, PlainDecoder())
    await key_space.load()
    observation = _observation(key_space)
    turns = iter(range(100))

    def forget_once() -> None:
        if next(turns) == 2:
            observation.forget()

    async with _turns(forget_once):
        await observation.prepare(SteppingClock())

    assert len(observation.whole().items) == PART_KEYS * 2


@pytest.mark.parametrize("seed", range(20))
def test_reload_applies_the_differences(seed: int) -> None:
    """Keys come, go, go bad and come back while history is lost: mirror, problems and changes are those of a mirror
    to which the differences alone are put, one by one.
    """
    random, told = Random(seed), Mirror(KEYS, PlainDecoder())
    reloaded = Mirror(KEYS, PlainDecoder())
    present: dict[bytes, KeyValue] = {}
    names = [
        *(KEYS.item(ItemId(f"i{n}")) for n in range(4)),
        *(KEYS.assignment(ItemId(f"i{n}"), MEMBERS[n], 0) for n in range(4)),
        KEYS.member(MEMBERS[0]),
        b"/r/other/x",
    ]
    values = {b"/r/items": b"R=1", b"/r/assign": b"consistent", b"/r/members": b"limit=3"}
    revision = 1
    for _ in range(12):
        for _ in range(random.randrange(6)):
            revision += 1
            key = random.choice(names)
            if key in present and random.random() < 0.4:
                del present[key]
                continue
            good = next((value for begin, value in values.items() if key.startswith(begin)), b"")
            value = b"junk" if random.random() < 0.3 and b"assign" not in key else good
            created = present[key].create_revision if key in present else revision
            present[key] = _kv(key, value, revision, created=created)
        for key in [key for key in told.known_keys() if key not in present]:
            told.delete(key)
        reload = reloaded.reload()
        for key in sorted(present):
            assert reload.take(present[key]) == told.put(present[key])
        reloaded = reload.finish()

        assert dict(reloaded.items) == dict(told.items)
        assert dict(reloaded.members) == dict(told.members)
        assert dict(reloaded.assignments) == dict(told.assignments)
        assert reloaded.problems() == told.problems()
        for number in range(4):
            item_id = ItemId(f"i{number}")
            assert reloaded.assignments_of(item_id) == told.assignments_of(item_id)
        assert reloaded.take_changes() == told.take_changes()
