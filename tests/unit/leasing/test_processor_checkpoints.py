"""What a record processor may checkpoint, and what is stored: the Kinesis Client Library's own cases, and ours."""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import InvalidPositionError, ShutdownError, ThrottlingError
from broadsheet.leases.position import Position
from broadsheet.leases.record_processor.processor import Place, ProcessorRecord
from tests.support.checkpointing import CheckpointedShard, record_at

pytestmark = pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])


async def test_checkpoint_commits_all_that_was_delivered(blocking: bool) -> None:
    """KCL ShardShardRecordProcessorCheckpointerTest.testCheckpoint: what is stored advances with what is delivered."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)

    shard.deliver(5001)
    await shard.checkpoint()
    assert shard.record.checkpoint == Position("5001")

    shard.deliver(5002, 5019)
    await shard.checkpoint()
    assert shard.record.checkpoint == Position("5019")
    assert shard.writes == 2


async def test_checkpoint_at_a_record_a_number_or_a_place_in_an_aggregate(blocking: bool) -> None:
    """KCL testCheckpointRecord, …SubRecord, …SequenceNumber, …ExtendedSequenceNumber.

    A record within an aggregate is committed with its index, which KCL 2 drops: the rest of it is not lost.
    """
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.progress.deliver([record_at(5025), record_at(5030, 0), record_at(5030, 9)])

    await shard.checkpoint(record_at(5025))
    assert shard.record.checkpoint == Position("5025")
    await shard.checkpoint("5030")
    assert shard.record.checkpoint == Position("5030", 0)
    await shard.checkpoint("5030", 4)
    assert shard.record.checkpoint == Position("5030", 4)
    await shard.checkpoint(record_at(5030, 9))
    assert shard.record.checkpoint == Position("5030", 9)


async def test_checkpoint_at_the_end_of_a_shard(blocking: bool) -> None:
    """KCL testCheckpointAtShardEnd: the end may be named once it was reached, and is what no argument means."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.deliver(10)
    with pytest.raises(InvalidPositionError):
        await shard.checkpoint("SHARD_END")

    shard.progress.reach_end()
    await shard.checkpoint("SHARD_END")

    assert shard.record.is_finished
    assert shard.progress.is_ended


@pytest.mark.parametrize(
    ("at", "sub"), [("5025", None), (record_at(5025), None), (Position("5025", 3), None)]
)
async def test_prepared_checkpoint_is_pending_until_it_is_committed(
    blocking: bool, at: Place | None, sub: int | None
) -> None:
    """KCL testPrepareCheckpointRecord, …SubRecord, …SequenceNumber, …ExtendedSequenceNumber."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.progress.deliver([record_at(5025), record_at(5025, 7)])

    prepared = await shard.prepare(at, sub)

    assert shard.record.checkpoint == Position("TRIM_HORIZON")
    assert shard.record.pending == prepared.pending
    assert prepared.pending.seq == "5025"
    await prepared.checkpoint()
    assert shard.record.checkpoint == prepared.pending
    assert shard.record.pending is None


async def test_prepare_without_argument_takes_the_whole_position_and_the_note(
    blocking: bool,
) -> None:
    """KCL testPrepareCheckpoint with state; theirs drops the index within an aggregate, ours must not."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.progress.deliver([record_at(7, 3)])

    prepared = await shard.prepare(state=b"note")

    assert (shard.record.pending, shard.record.pending_state) == (Position("7", 3), b"note")
    await prepared.checkpoint()
    assert (shard.record.pending, shard.record.pending_state) == (None, None)


async def test_prepared_end_of_a_shard(blocking: bool) -> None:
    """KCL testPrepareCheckpointAtShardEnd: the last record and the end are one."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.deliver(6789)
    shard.progress.reach_end()

    prepared = await shard.prepare("6789")

    assert prepared.pending == Position("SHARD_END")
    assert shard.record.pending == Position("SHARD_END")
    await prepared.checkpoint()
    assert shard.record.is_finished


async def test_prepared_checkpoints_are_committed_in_order(blocking: bool) -> None:
    """KCL testMultipleOutstandingCheckpointersHappyCase: the second has no pending row any more, and still commits."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.deliver(1, 2)
    first, second = await shard.prepare("1"), await shard.prepare("2")
    pendings = [shard.record.pending]

    await first.checkpoint()
    pendings.append(shard.record.pending)
    await second.checkpoint()

    assert pendings == [Position("2"), None]
    assert shard.record.checkpoint == Position("2")


async def test_older_prepared_checkpoint_after_a_newer_is_refused(blocking: bool) -> None:
    """KCL testMultipleOutstandingCheckpointersOutOfOrder."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.deliver(1, 2)
    first, second = await shard.prepare("1"), await shard.prepare("2")
    await second.checkpoint()

    with pytest.raises(InvalidPositionError):
        await first.checkpoint()

    assert shard.record.checkpoint == Position("2")


REFUSED = ["2", "13", "9000", "6789", "", "bogus", "-1", "SHARD_END", "TRIM_HORIZON", "LATEST"]


@pytest.mark.parametrize("prepared", [False, True])
async def test_checkpoint_outside_of_what_was_delivered_changes_nothing(
    blocking: bool, prepared: bool
) -> None:
    """KCL testClientSpecifiedCheckpoint and testClientSpecifiedTwoPhaseCheckpoint, step by step."""
    shard = CheckpointedShard("13", blocking=blocking)

    async def checkpoint(at: str) -> None:
        if prepared:
            await (await shard.prepare(at)).checkpoint()
        else:
            await shard.checkpoint(at)

    shard.deliver(5019)
    await _assert_refused(shard, "2", prepared=prepared)
    await checkpoint("13")
    await checkpoint("13")
    assert shard.writes == 0
    await checkpoint("127")
    for at in REFUSED:
        await _assert_refused(shard, at, prepared=prepared)
    await checkpoint("5019")
    shard.deliver(6789)
    shard.progress.reach_end()
    await checkpoint("6789")

    assert shard.record.is_finished
    await shard.checkpoint()
    await shard.checkpoint("SHARD_END")
    await _assert_refused(shard, "6789", prepared=prepared)


async def _assert_refused(shard: CheckpointedShard, at: str, *, prepared: bool) -> None:
    before = shard.seen
    with pytest.raises(InvalidPositionError):
        await (shard.prepare(at) if prepared else shard.checkpoint(at))
    assert shard.seen == before


async def test_prepare_of_what_is_committed_does_nothing(blocking: bool) -> None:
    """KCL ShardPreparedCheckpointerTest.testDoesNothingPreparedCheckpoint: the store is not touched."""
    shard = CheckpointedShard("13", blocking=blocking)

    named, last = await shard.prepare("13"), await shard.prepare(state=b"lost")
    await named.checkpoint()
    await last.checkpoint()

    assert named.pending == last.pending == Position("13")
    assert shard.writes == 0
    assert shard.record.pending is None


@pytest.mark.parametrize("start", ["LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"])
@pytest.mark.parametrize("calls", [False, True])
async def test_shard_without_records_ends(blocking: bool, start: str, calls: bool) -> None:
    """KCL testMixedCheckpointCalls: from a place to start to the end, with and without a checkpoint in between."""
    shard = CheckpointedShard(start, blocking=blocking)
    if calls:
        await shard.checkpoint()
        await shard.checkpoint(start)
    assert shard.writes == 0

    shard.progress.reach_end()
    await shard.checkpoint()

    assert shard.record.is_finished


@pytest.mark.parametrize("way", ["direct", "prepared", "prepared, then direct"])
async def test_mixed_calls_commit_the_same_in_every_way(blocking: bool, way: str) -> None:
    """KCL testMixedCheckpointCalls, testMixedTwoPhaseCheckpointCalls and …Calls2: the long plan."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)

    async def checkpoint(at: str | None) -> None:
        if way == "direct":
            await shard.checkpoint(at)
            return
        prepared = await shard.prepare(at)
        await (shard.checkpoint(at) if way.endswith("direct") else prepared.checkpoint())

    for delivered, at in ((1, None), (2, "2"), (3, None), (4, None), (8, "5"), (8, "8")):
        shard.deliver(delivered)
        await checkpoint(at)
        assert shard.record.checkpoint == Position(at or str(delivered))
        assert shard.record.pending is None
    shard.progress.reach_end()
    await checkpoint(None)

    assert shard.record.is_finished


async def test_name_of_another_start_is_no_progress(blocking: bool) -> None:
    """From TRIM_HORIZON to LATEST is upwards in the order, and would skip every record; KCL lets it through."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.deliver(5)

    await _assert_refused(shard, "LATEST", prepared=False)


async def test_long_numbers_are_kept_exactly_and_compared_by_value(blocking: bool) -> None:
    """KCL testUpdate: 44 digits; and "9" before "10", with leading zeros that mean nothing."""
    shard = CheckpointedShard("9", blocking=blocking)
    number = "12345678901234567890123456789012345678901234"
    shard.deliver("10", number)

    await shard.checkpoint("0010")
    await shard.checkpoint()

    assert shard.record.checkpoint == Position(number)


async def test_store_failure_leaves_the_call_to_be_made_again(blocking: bool) -> None:
    """What the processor believes to be committed moves only with what is."""
    shard = CheckpointedShard("1", blocking=blocking)
    shard.deliver(2)
    shard.failure = ThrottlingError("no capacity")
    with pytest.raises(ThrottlingError):
        await shard.checkpoint()

    shard.failure = None
    await shard.checkpoint()

    assert shard.record.checkpoint == Position("2")


async def test_lost_lease_refuses_everything_that_writes(blocking: bool) -> None:
    """KCL DynamoDBCheckpointerTest.testSetCheckpointWithUnownedShardId; a prepared checkpoint is no way around."""
    shard = CheckpointedShard("1", blocking=blocking)
    shard.deliver(2)
    prepared = await shard.prepare()
    shard.lose()

    for call in (shard.checkpoint(), shard.prepare("2"), prepared.checkpoint()):
        with pytest.raises(ShutdownError):
            await call


@pytest.mark.parametrize(
    ("at", "sub"), [(None, 3), (record_at(1), 0), (Position("1"), 1), ("1", -1), ("١", None)]
)
async def test_malformed_places_are_refused(
    blocking: bool, at: Place | None, sub: int | None
) -> None:
    """An index belongs to a sequence number, is not negative, and digits are those of ASCII."""
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking)
    shard.deliver(1)

    with pytest.raises(InvalidPositionError):
        await shard.checkpoint(at, sub)


async def test_record_without_any_checkpoint_has_only_an_upper_bound(blocking: bool) -> None:
    """A lease that only makes room: nothing to commit before the first record, then any delivered one."""
    shard = CheckpointedShard(None, blocking=blocking)
    await shard.checkpoint()
    with pytest.raises(InvalidPositionError):
        await shard.prepare()
    shard.deliver(4, 5)

    await shard.checkpoint("4")

    assert shard.record.checkpoint == Position("4")


async def test_record_is_delivered_once_in_an_assignment(blocking: bool) -> None:
    """Reading begins again at the first record of an aggregate, and after errors: what was delivered is left out."""
    shard = CheckpointedShard("7", blocking=blocking)
    records = [record_at(7, 0), record_at(7, 1), record_at(8)]

    first = shard.progress.deliver(records)
    again = shard.progress.deliver([*records, record_at(9)])

    assert [record.position for record in first] == [Position("7", 1), Position("8")]
    assert [record.position for record in again] == [Position("9")]


async def test_broker_offset_does_not_make_another_place(blocking: bool) -> None:
    """An application that names a number does not know what a broker calls it."""
    shard = CheckpointedShard("7", blocking=blocking)
    place = Position("8", offset="at 800")
    shard.progress.deliver([ProcessorRecord(position=place, binary_data=b"")])

    await shard.checkpoint("8")
    await shard.checkpoint()

    assert shard.writes == 1
