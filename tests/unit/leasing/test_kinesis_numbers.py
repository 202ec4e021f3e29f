"""Which shard a sequence number of Kinesis was given in.

Origins are in awslabs/amazon-kinesis-client, `checkpoint.SequenceNumberValidatorTest`; rewritten.
"""

from __future__ import annotations

import pytest

from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.record_processor.checkpointer import is_number_of_shard, shard_of_number

NUMBER = "49587497311274533994574834252742144236107130636007899138"
SHARD = "shardId-000000000000"


@pytest.mark.parametrize("shard", [SHARD, SHARD.upper()])
def test_matching_sequence_number(shard: str) -> None:
    """`matchingSequenceNumberTest`: yes, in any case of letters; and numbers say it of greater shards, too."""
    assert is_number_of_shard(NUMBER, shard) is True

    later = str(int(NUMBER) + (123_456 << 4))
    assert shard_of_number(later) == "shardId-000000123456"


def test_shard_mismatch() -> None:
    """`shardMismatchTest`: no."""
    assert is_number_of_shard(NUMBER, "shardId-000000000001") is False


@pytest.mark.parametrize(
    "number",
    [
        "74107425965128755728308386687147091174006956590945533954",
        str(int(NUMBER) - (1 << 184)),
        NUMBER[:-1],
        NUMBER + "0",
        "17",
        "SHARD_END",
    ],
    ids=["other version", "version 1", "too short", "too long", "small", "a name"],
)
def test_number_that_does_not_say(number: str) -> None:
    """`versionMismatchTest`, `sequenceNumberToShortTest`, `sequenceNumberToLongTest`: it may be the shard's or not."""
    assert is_number_of_shard(number, SHARD) is None


def test_what_is_no_number_is_refused() -> None:
    """As by a checkpoint at it."""
    with pytest.raises(InvalidPositionError):
        is_number_of_shard("4958749x", SHARD)
