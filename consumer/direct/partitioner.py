"""The partition of a key, as Kafka's producers in Java choose it. Pure.

Source: org.apache.kafka.common.utils.Utils.murmur2 and its use in BuiltInPartitioner.partitionForKey.
"""

from __future__ import annotations

from typing import Final

_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of a key, 32 bits, unsigned."""
    length = len(key)
    value = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        part = (int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER) & _MASK
        part ^= part >> 24
        value = ((value * _MULTIPLIER) & _MASK) ^ ((part * _MULTIPLIER) & _MASK)
    if length > whole:
        value = ((value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, of so many."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
