"""The row by which one worker of the Kinesis Client Library for Java, version 3, leads the others.

Its lock client keeps it, under the key `Leader`: since 3.5 in the lease table, with `entityType` `LEADER`, before that
in a table of its own. It is read here and never written: two libraries that keep one lock by different rules would
take it from each other.

    ownerName              S  the worker that leads
    recordVersionNumber    S  new with each heartbeat, every 30 s
    leaseDuration          S  milliseconds that it may stand still, 120 000
    isReleased             S  its owner stepped down

Source: awslabs/amazon-dynamodb-lock-client AmazonDynamoDBLockClient (attributes); awslabs/amazon-kinesis-client
coordinator.CoordinatorStateDAO (table, key).
"""

from __future__ import annotations

from typing import Final

from consumer.leasing.dynamodb.core.values import Item
from consumer.leasing.store import ForeignLeader

LEADER_KEYS: Final = ("Leader", "DeployingLeader")
"""Of the leader, and of the one that its newer versions have besides while a fleet is replaced."""
STATE_KEY: Final = "key"
LEASE_SECONDS: Final = 120.0
"""What it is if the row does not say."""

_MILLISECONDS: Final = 1_000
_DIGITS_MAX: Final = 15
"""Of a number that is believed: a longer one is of no use as a time, and Python reads none of thousands."""


def state_table(lease_table: str) -> str:
    """Return the table in which versions 3.0 to 3.4 keep the row, if the application is named like its lease table."""
    return f"{lease_table}-CoordinatorState"


def leader_in(row: Item) -> ForeignLeader | None:
    """Return the leader that a row names, dead or alive; None if it stepped down, or the row names none."""
    owner, version = _plain(row, "ownerName"), _plain(row, "recordVersionNumber")
    if owner is None or version is None or "isReleased" in row:
        return None
    return ForeignLeader(name=owner, version=version, lease_seconds=_lease_seconds(row))


def _lease_seconds(row: Item) -> float:
    written = _plain(row, "leaseDuration") or ""
    is_number = written.isdecimal() and len(written) <= _DIGITS_MAX
    return int(written) / _MILLISECONDS if is_number else LEASE_SECONDS


def _plain(row: Item, name: str) -> str | None:
    """Return an attribute's text or number as text, whatever a version of theirs made of it."""
    value = row.get(name, {})
    found = value.get("S", value.get("N"))
    return None if found is None else str(found)
