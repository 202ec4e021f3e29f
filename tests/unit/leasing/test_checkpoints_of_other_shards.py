"""Sequence numbers of Kinesis that a processor did not get from its own shard."""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.checkpointer import Change, LeaseCheckpointer
from broadsheet.leases.record_processor.processor import ProcessorRecord
from broadsheet.leases.record_processor.shard_progress import ShardProgress

SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"
OF_SHARD_0 = int("49587497311274533994574834252742144236107130636007899138")
"""Of Kinesis, given in its shard 0."""
OF_SHARD_1 = OF_SHARD_0 + (1 << 4)
LATER = 1 << 40


class _Lease:
    """A lease's record, and a checkpointer of it."""

    def __init__(self, key: str, *delivered: int) -> None:
        self.record = LeaseRecord(key=key, owner="w", checkpoint=Position("TRIM_HORIZON"))
        progress = ShardProgress(self.record.checkpoint)
        progress.deliver(
            ProcessorRecord(position=Position(str(number)), binary_data=b"") for number in delivered
        )
        self.checkpointer = LeaseCheckpointer(progress, self._write)

    async def _write(self, change: Change) -> LeaseRecord:
        self.record = change(self.record)
        return self.record


@pytest.mark.parametrize("key", [SHARD_1, f"111122223333:clicks:1:{SHARD_1}"])
async def test_number_of_another_shard_within_bounds_is_refused(key: str) -> None:
    """It lies between what was committed and delivered, and a successor would begin at an arbitrary record."""
    lease = _Lease(key, OF_SHARD_1, OF_SHARD_1 + 2 * LATER)
    before = lease.record

    with pytest.raises(InvalidPositionError, match=SHARD_0):
        await lease.checkpointer.checkpoint(str(OF_SHARD_0 + LATER))
    with pytest.raises(InvalidPositionError, match=SHARD_0):
        await lease.checkpointer.prepare_checkpoint(str(OF_SHARD_0 + LATER))

    assert lease.record == before
    await lease.checkpointer.checkpoint(str(OF_SHARD_1 + LATER))
    assert lease.record.checkpoint == Position(str(OF_SHARD_1 + LATER))


@pytest.mark.parametrize("key", [SHARD_1, "part-1"])
async def test_number_that_was_delivered_is_taken_whatever_it_says(key: str) -> None:
    """Emulators give numbers whose bits mean nothing; what the shard delivered is the shard's."""
    lease = _Lease(key, OF_SHARD_0, OF_SHARD_0 + LATER)

    await lease.checkpointer.checkpoint(str(OF_SHARD_0))
    await lease.checkpointer.checkpoint()

    assert lease.record.checkpoint == Position(str(OF_SHARD_0 + LATER))
