"""What the driver tells members to do: keys in etcd that every member watches. Keys say it all; values are empty.

    {prefix}all                     every member leaves, for good
    {prefix}{partition}             that task's member leaves, for good
    {prefix}{partition}-{attempt}   that attempt leaves, and Spark starts the next one, elsewhere if it can

Leaving is negotiated: shards are handed over first. An order to a task stands until the cluster ends, for Spark may
start the task anew meanwhile; a task's number is never used twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from broadsheet.spark_bridge.member.identity import Incarnation


class Order(Enum):
    """What an order asks a member for."""

    LEAVE = "leave"
    """Its task is to end."""
    MOVE = "move"
    """Its task is to fail, so that Spark starts it anew."""


def all_members_key(prefix: bytes) -> bytes:
    """Return the key that sends every member away."""
    return prefix + b"all"


def task_key(prefix: bytes, partition: int) -> bytes:
    """Return the key that sends one task's member away."""
    return prefix + b"%d" % partition


def attempt_key(prefix: bytes, partition: int, attempt: int) -> bytes:
    """Return the key that moves one task's member."""
    return prefix + b"%d-%d" % (partition, attempt)


def order_to(incarnation: Incarnation, *, prefix: bytes, keys: Iterable[bytes]) -> Order | None:
    """Return what the keys that stand ask of one member; leaving for good goes before moving."""
    standing = frozenset(keys)
    if not standing.isdisjoint((all_members_key(prefix), task_key(prefix, incarnation.partition))):
        return Order.LEAVE
    if attempt_key(prefix, incarnation.partition, incarnation.attempt) in standing:
        return Order.MOVE
    return None
