"""Rows of the Kinesis Client Library for Java, without a table.

Origins are in awslabs/amazon-kinesis-client, `leases.dynamodb.DynamoDBLeaseSerializerTest`; rewritten. That any
record is read as it was written is tested with random ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.dynamodb.kcl_java import KclJavaLayout

LAYOUT = KclJavaLayout()
ROW: dict[str, Any] = {  # Any: values of attributes.
    "leaseKey": {"S": "a"},
    "leaseCounter": {"N": "3"},
    "leaseOwner": {"S": "java"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "7"},
    "checkpointSubSequenceNumber": {"N": "0"},
}


def test_kind_of_row_is_written() -> None:
    """`toDynamoRecord` with an entity type: every lease says that it is one."""
    assert LAYOUT.row(LeaseRecord(key="a"))["entityType"] == {"S": "LEASE"}


@pytest.mark.parametrize("kind", [{}, {"entityType": {"S": "LEASE"}}], ids=["absent", "LEASE"])
def test_row_of_a_lease_is_read(kind: dict[str, Any]) -> None:
    """Before 3.5 nothing said what a row is: that is a lease, too."""
    record = LAYOUT.read(ROW | kind, None)

    assert record is not None
    assert (record.owner, record.counter, record.checkpoint) == ("java", 3, Position("7"))
    assert "entityType" not in record.attrs


@pytest.mark.parametrize(
    "kind",
    [
        *("STREAM", "LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION"),
        *("WORKER_METRIC_STATS", "WHAT_COMES_NEXT"),
    ],
)
def test_row_of_another_kind_is_no_lease(kind: str) -> None:
    """Also of a kind that nobody knows yet."""
    assert LAYOUT.read(ROW | {"entityType": {"S": kind}}, None) is None


def test_announced_state_is_written_as_what_it_is() -> None:
    """`create` there writes a number in its place, which then cannot be read: a row never goes without it here."""
    record = LeaseRecord(
        key="a", checkpoint=Position("7", 4), pending=Position("9", 2), pending_state=b"\x00x"
    )

    row = LAYOUT.row(record)

    assert row["pendingCheckpointState"] == {"B": b"\x00x"}
    assert row["pendingCheckpointSubSequenceNumber"] == {"N": "2"}
    assert row["checkpointSubSequenceNumber"] == {"N": "4"}


def test_nothing_is_written_that_is_empty() -> None:
    """An empty text is no key of the index, and an empty set no value: the row goes without."""
    row = LAYOUT.row(LeaseRecord(key="a"))

    assert not {"leaseOwner", "checkpointOwner", "checkpoint", "parentShardId", "childShardIds"} & {
        *row
    }


@pytest.mark.parametrize(
    ("attribute", "field", "expected"),
    [
        ("leaseCounter", "counter", 0),
        ("ownerSwitchesSinceCheckpoint", "owner_switches", 0),
        ("checkpoint", "checkpoint", None),
        ("checkpointSubSequenceNumber", "checkpoint", Position("7")),
        ("leaseOwner", "owner", None),
    ],
)
def test_what_is_missing_is_nothing(attribute: str, field: str, expected: object) -> None:
    """A checkpoint that is missing is none; theirs hands processors one without a number."""
    row = {name: value for name, value in ROW.items() if name != attribute}

    assert getattr(LAYOUT.read(row, None), field) == expected


def test_owner_of_no_letters_is_none() -> None:
    """Whoever wrote it: nobody has that name."""
    record = LAYOUT.read(ROW | {"leaseOwner": {"S": ""}}, None)

    assert record is not None
    assert record.owner is None


@pytest.mark.parametrize(
    "spoilt",
    [
        {"leaseCounter": {"S": "three"}},
        {"checkpoint": {"S": "somewhere"}},
        {"checkpointOwner": {"S": "java"}, "leaseOwner": {"S": ""}},
    ],
    ids=["counter", "checkpoint", "hand-off to nobody"],
)
def test_row_that_cannot_be_read_is_told_by_its_key(spoilt: dict[str, Any]) -> None:
    """A scan leaves it out and logs it; `get` raises this."""
    with pytest.raises(InvalidStateError, match="lease a"):
        LAYOUT.read(ROW | spoilt, None)


def test_counter_that_dynamodb_cannot_hold_is_refused() -> None:
    """A foreign row may hold the greatest number of 38 digits; the next one is told as an error of leasing."""
    full = LAYOUT.read(ROW | {"leaseCounter": {"N": "9" * 38}}, None)
    assert full is not None
    assert LAYOUT.row(full)["leaseCounter"] == {"N": "9" * 38}

    with pytest.raises(InvalidStateError, match="cannot hold the number 1000000"):
        LAYOUT.row(rules.renew(full))
