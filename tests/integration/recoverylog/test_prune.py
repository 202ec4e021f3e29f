"""Prunes of logs that real recorders wrote, at a real broker: what goes, what stays, and what is recovered after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.recoverylog.hints import backup_hints_keys
from broadsheet.consumer.recoverylog.prune_plan import LogPlan, SegmentFate
from broadsheet.consumer.recoverylog.pruner import PruneOutcome, Pruner
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ApplyRequest
from tests.support.pruned_logs import RecordedShard, ShiftedClock, fragments_of, span_bytes

pytestmark = pytest.mark.etcd

HOUR = 3600.0
MakeShard = Callable[..., RecordedShard]


@pytest.fixture
async def make_shard(
    etcd: EtcdClient, journals: JournalClient, etcd_root: str, tmp_path: Path
) -> AsyncIterator[MakeShard]:
    """Make shards of the test's root, and end their recorders."""
    async with AsyncExitStack() as stack:

        def make(shard_id: str = "shard-a", *, backups: int = 2) -> RecordedShard:
            shard = RecordedShard(etcd, journals, etcd_root, tmp_path, shard_id, backups)
            stack.push_async_callback(shard.close)
            return shard

        yield make


@pytest.fixture
def clock() -> ShiftedClock:
    """Time, which the test may move."""
    return ShiftedClock()


@pytest.fixture
def pruner(
    etcd: EtcdClient, journals: JournalClient, etcd_root: str, clock: ShiftedClock
) -> Pruner:
    """The pruner of the test's root."""
    return Pruner(etcd, journals, Keys(etcd_root), clock=clock)


async def planned(pruner: Pruner, delay_seconds: float = 0) -> dict[str, LogPlan]:
    """Return all plans by log."""
    return {plan.log: plan async for plan in pruner.plan(delay_seconds=delay_seconds)}


async def pruned(pruner: Pruner, delay_seconds: float = 0) -> dict[str, PruneOutcome]:
    """Prune, and return what was done by log."""
    return {each.plan.log: each async for each in pruner.prune(delay_seconds=delay_seconds)}


async def test_every_hint_recovers_after_a_prune(
    pruner: Pruner, make_shard: MakeShard, journals: JournalClient
) -> None:
    """Four processes record one after the other; the plan names what the prune then removes, a good part of the log.
    The primary hints and both backups recover all files, the next process records on, and a second prune finds
    nothing to do but what became dead since.
    """
    shard = make_shard()
    await shard.live(lives=4)
    before = await fragments_of(journals, shard.log)

    plan = (await planned(pruner))[shard.log]
    outcome = (await pruned(pruner))[shard.log]

    after = await fragments_of(journals, shard.log)
    gone = [each for each in before if each.begin not in {left.begin for left in after}]
    assert gone == list(plan.dead)
    assert (outcome.removed.fragments, outcome.removed.bytes) == (len(gone), span_bytes(gone))
    assert span_bytes(gone) > span_bytes(before) / 4
    assert outcome.failed.fragments == 0
    await shard.check()
    assert (await pruned(pruner))[shard.log].removed.fragments == 0
    await shard.fail_over()
    await shard.work(60)
    await shard.store_hints()
    assert (await pruned(pruner))[shard.log].removed.fragments > 0
    await shard.check()


async def test_plan_changes_nothing(
    pruner: Pruner, make_shard: MakeShard, journals: JournalClient, etcd: EtcdClient, etcd_root: str
) -> None:
    """Neither fragments nor a key anywhere below the root or beside it."""
    shard = make_shard()
    await shard.live(lives=3)
    fragments = await fragments_of(journals, shard.log)
    ranges = [etcd_root.encode(), b"/hints" + etcd_root.encode(), AuxiliaryKeys(etcd_root).prefix]
    before = [(await etcd.get_range(key, prefix_range_end(key))).kvs for key in ranges]

    assert (await planned(pruner))[shard.log].tallies[SegmentFate.DEAD].fragments > 0
    assert (await planned(pruner, HOUR))[shard.log].tallies[SegmentFate.QUARANTINED].fragments > 0

    assert await fragments_of(journals, shard.log) == fragments
    assert [(await etcd.get_range(key, prefix_range_end(key))).kvs for key in ranges] == before


async def test_dead_fragments_wait_for_the_delay(
    pruner: Pruner, make_shard: MakeShard, clock: ShiftedClock, etcd: EtcdClient, etcd_root: str
) -> None:
    """A shard without backups, so that age alone does not count. The first prune remembers, one just before the delay
    is over removes nothing, the next one does; then nothing is remembered. A plan never starts the wait.
    """
    shard = make_shard(backups=0)
    await shard.live(lives=3)
    await planned(pruner, HOUR)
    clock.ahead_seconds = 5 * HOUR

    first = (await pruned(pruner, HOUR))[shard.log]
    waiting = first.plan.tallies[SegmentFate.QUARANTINED].fragments
    assert waiting > 0
    assert first.removed.fragments == 0
    assert abs(first.plan.quarantined_until - (clock.wall_seconds() + HOUR)) < 5
    clock.ahead_seconds += HOUR - 10
    assert (await pruned(pruner, HOUR))[shard.log].removed.fragments == 0
    clock.ahead_seconds += 20
    assert (await pruned(pruner, HOUR))[shard.log].removed.fragments == waiting

    prefix = AuxiliaryKeys(etcd_root).prefix + b"prune/"
    assert (await etcd.get_range(prefix, prefix_range_end(prefix))).kvs == ()
    await shard.check()


async def test_log_whose_record_a_later_release_wrote_is_spared_and_keeps_it(
    pruner: Pruner, make_shard: MakeShard, etcd: EtcdClient, etcd_root: str
) -> None:
    """A record of ours in its place would start the wait of each dead byte again, and lose what else it says."""
    shard = make_shard(backups=0)
    await shard.live(lives=3)
    key = AuxiliaryKeys(etcd_root).prefix + f"prune/{shard.log}".encode()
    await etcd.put(key, b'{"min_reader":2}')

    outcome = (await pruned(pruner))[shard.log]

    assert "a later release wrote the record of a log's dead bytes" in outcome.plan.spared
    assert outcome.removed.fragments == 0
    assert [kv.value for kv in (await etcd.get_range(key)).kvs] == [b'{"min_reader":2}']


async def test_old_fragments_need_not_wait_where_backups_are(
    pruner: Pruner, make_shard: MakeShard, clock: ShiftedClock
) -> None:
    """The first prune of an old cluster removes what is older than the delay by itself."""
    shard = make_shard()
    await shard.live(lives=4)
    assert (await pruned(pruner, HOUR))[shard.log].removed.fragments == 0
    clock.ahead_seconds = HOUR + 10
    assert (await pruned(pruner, HOUR))[shard.log].removed.fragments > 0
    await shard.check()


async def test_prunes_beside_a_recorder_take_nothing_from_it(
    pruner: Pruner, make_shard: MakeShard
) -> None:
    """Prune after prune while operations are recorded and hints written: it recovers from each hint at the end."""
    shard = make_shard()
    await shard.live(lives=3)

    async def prune_on() -> None:
        while True:
            await pruned(pruner)

    async with TaskGroup() as group:
        group.start_soon(prune_on(), name="prune")
        for _ in range(3):
            for _ in range(4):
                await shard.work(40)
                await shard.store_hints()
            await shard.fail_over()
            await shard.store_hints()
        group.stop()
    await shard.check()


async def test_logs_are_spared_with_their_reasons(
    pruner: Pruner, make_shard: MakeShard, etcd: EtcdClient, journals: JournalClient
) -> None:
    """A shard without hints, one without a journal, one with garbage in a backup, which spares even the sound one."""
    sound, fresh, lost = make_shard(), make_shard("fresh"), make_shard("lost")
    await sound.live(lives=3)
    await fresh.create()
    await lost.live(lives=1)
    revision = (await journals.get(lost.log)).mod_revision
    await journals.apply([ApplyRequest.Change(delete=lost.log, expect_mod_revision=revision)])

    outcomes = await pruned(pruner)
    assert "has no hints" in outcomes[fresh.log].plan.spared
    assert outcomes[lost.log].plan.spared == "there is no such journal"
    assert outcomes[sound.log].removed.fragments > 0

    await sound.fail_over()
    await sound.store_hints()
    await etcd.put(backup_hints_keys(fresh.spec)[1], b"{garbage")
    outcomes = await pruned(pruner)
    assert "may need any log" in outcomes[sound.log].plan.spared
    assert outcomes[sound.log].removed.fragments == 0
    await sound.check()


async def test_log_of_a_deleted_shard_is_nobodys_to_prune(
    pruner: Pruner, make_shard: MakeShard, etcd: EtcdClient, journals: JournalClient, etcd_root: str
) -> None:
    """Its hints are still in etcd, and it may be applied again; what a prune remembered of it is forgotten."""
    shard, other = make_shard(), make_shard("other")
    await shard.live(lives=3)
    await other.live(lives=1, changes=5)
    await pruned(pruner, HOUR)
    prefix = AuxiliaryKeys(etcd_root).prefix + b"prune/"
    remembered = (await etcd.get_range(prefix, prefix_range_end(prefix))).kvs
    assert [kv.key.removeprefix(prefix) for kv in remembered] == [shard.log.encode()]
    before = await fragments_of(journals, shard.log)

    await etcd.delete(Keys(etcd_root).item(ItemId(shard.shard_id)))

    assert list(await pruned(pruner)) == [other.log]
    assert await fragments_of(journals, shard.log) == before
    assert (await etcd.get_range(prefix, prefix_range_end(prefix))).kvs == ()
