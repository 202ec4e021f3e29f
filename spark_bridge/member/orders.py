"""Orders from the driver to members: keys in etcd that every member watches, with empty values.

    {prefix}all                     every member leaves, for good
    {prefix}{partition}             that task's member leaves, for good
    {prefix}{partition}-{attempt}   that attempt leaves, and Spark starts the next one, elsewhere if it can

A member that is ordered to leave hands its shards over first. An order to a task is kept until the cluster ends,
because Spark may restart the task meanwhile; a task's number is never used twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from broadsheet.spark_bridge.member.identity import Incarnation


class Order(Enum):
    """The kinds of orders to a member."""

    LEAVE = "leave"
    """The task ends."""
    MOVE = "move"
    """The task fails, so that Spark starts it again elsewhere."""


def all_members_key(prefix: bytes) -> bytes:
    """Return the key that orders every member to leave."""
    return prefix + b"all"


def task_key(prefix: bytes, partition: int) -> bytes:
    """Return the key that orders one task's member to leave."""
    return prefix + b"%d" % partition


def attempt_key(prefix: bytes, partition: int, attempt: int) -> bytes:
    """Return the key that orders one task's member to move."""
    return prefix + b"%d-%d" % (partition, attempt)


def order_to(incarnation: Incarnation, *, prefix: bytes, keys: Iterable[bytes]) -> Order | None:
    """Return the order of the present keys to one member; leaving takes precedence over moving."""
    present = frozenset(keys)
    if not present.isdisjoint((all_members_key(prefix), task_key(prefix, incarnation.partition))):
        return Order.LEAVE
    if attempt_key(prefix, incarnation.partition, incarnation.attempt) in present:
        return Order.MOVE
    return None
