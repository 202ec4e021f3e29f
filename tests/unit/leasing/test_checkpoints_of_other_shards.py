"""Sequence numbers of Kinesis that a processor did not get from its own shard."""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.position import Position
from tests.support.checkpointing import CheckpointedShard

SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"
OF_SHARD_0 = int("49587497311274533994574834252742144236107130636007899138")
"""Of Kinesis, given in its shard 0."""
OF_SHARD_1 = OF_SHARD_0 + (1 << 4)
LATER = 1 << 40

pytestmark = pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])


def _shard(key: str, *delivered: int, blocking: bool) -> CheckpointedShard:
    shard = CheckpointedShard("TRIM_HORIZON", blocking=blocking, key=key)
    shard.deliver(*delivered)
    return shard


@pytest.mark.parametrize("key", [SHARD_1, f"111122223333:clicks:1:{SHARD_1}"])
async def test_number_of_another_shard_within_bounds_is_refused(key: str, blocking: bool) -> None:
    """It lies between what was committed and delivered, and a successor would begin at an arbitrary record."""
    shard = _shard(key, OF_SHARD_1, OF_SHARD_1 + 2 * LATER, blocking=blocking)
    before = shard.record

    with pytest.raises(InvalidPositionError, match=SHARD_0):
        await shard.checkpoint(str(OF_SHARD_0 + LATER))
    with pytest.raises(InvalidPositionError, match=SHARD_0):
        await shard.prepare(str(OF_SHARD_0 + LATER))

    assert shard.record == before
    await shard.checkpoint(str(OF_SHARD_1 + LATER))
    assert shard.record.checkpoint == Position(str(OF_SHARD_1 + LATER))


@pytest.mark.parametrize("key", [SHARD_1, "part-1"])
async def test_number_that_was_delivered_is_taken_whatever_it_says(
    key: str, blocking: bool
) -> None:
    """Emulators give numbers whose bits mean nothing; what the shard delivered is the shard's."""
    shard = _shard(key, OF_SHARD_0, OF_SHARD_0 + LATER, blocking=blocking)

    await shard.checkpoint(str(OF_SHARD_0))
    await shard.checkpoint()

    assert shard.record.checkpoint == Position(str(OF_SHARD_0 + LATER))
