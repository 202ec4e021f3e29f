"""What a sequence number of Kinesis says of itself: the shard that it was given in.

A checkpoint of a Kinesis shard at a number of another shard is refused (`check_number`), because the next holder would
begin at an arbitrary record. A number that does not say is as good as any other; other systems' numbers do not say.

Source: awslabs/amazon-kinesis-client checkpoint.SequenceNumberValidator (which bits mean what).
"""

from __future__ import annotations

import re
from typing import Final

from consumer.errors import InvalidPositionError
from consumer.leasing.position import Position

_BITS: Final = 186
"""The length of every number of the one version that is known."""
_VERSION: Final = 2
_VERSION_FROM_BIT: Final = 184
_SHARD_FROM_BIT: Final = 4
_SHARD_BITS: Final = 32
_SHARD_KEY: Final = re.compile(r"(?:.*:)?(shardId-\d{12})", re.IGNORECASE)
"""Key of a lease on a Kinesis shard; before the id of the shard may be that of its stream."""


def shard_of_number(number: str) -> str | None:
    """Return the id of the shard that a sequence number was given in; None: it does not say.

    Args:
        number: The digits.

    Raises:
        InvalidPositionError: it is neither digits nor one of the four names, which do not say.
    """
    position = Position(number)
    if position.is_name:
        return None
    bits = int(position.seq)
    if bits.bit_length() != _BITS or bits >> _VERSION_FROM_BIT != _VERSION:
        return None
    shard = bits >> _SHARD_FROM_BIT & ((1 << _SHARD_BITS) - 1)
    return f"shardId-{shard:012d}"


def is_number_of_shard(number: str, shard_id: str) -> bool | None:
    """Tell whether a sequence number was given in a shard, whose id is in any case of letters; None: it does not say.

    Raises:
        InvalidPositionError: as `shard_of_number`.
    """
    shard = shard_of_number(number)
    return None if shard is None else shard.lower() == shard_id.lower()


def check_number(key: str, position: Position) -> None:
    """Refuse a sequence number that was given in another shard than that of a lease.

    Not for the number of a record that the shard itself delivered: emulators of Kinesis give numbers whose bits mean
    nothing.

    Args:
        key: Of the lease. One that names no Kinesis shard takes every number.
        position: What is to be checkpointed.

    Raises:
        InvalidPositionError: the number says another shard.
    """
    shard = _SHARD_KEY.fullmatch(key)
    if shard is not None and is_number_of_shard(position.seq, shard[1]) is False:
        raise InvalidPositionError(
            f"checkpoint of lease {key}: expected a sequence number of that shard, got {position.seq},"
            f" which is one of {shard_of_number(position.seq)}"
        )
