"""What stands in a blob of Event Processor Host, as a host and as we read it."""

from __future__ import annotations

import json

import pytest

from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.azure.eph import SEQUENCE_NUMBER_MAX, body_of, metadata_of, read_body

NAME = "$default/0"


def _by_a_host(**fields: object) -> bytes:
    """Return what a host writes: it keeps no field that it does not know."""
    known = {"partitionId": "0", "owner": "h1", "epoch": 4, "token": "t", "sequenceNumber": 0}
    return json.dumps(known | fields).encode()


def test_new_holder_looks_to_a_host_like_its_own() -> None:
    """A host creates `epoch` -1, no owner, no token, and no offset: an offset that is there would be resumed from."""
    fields = json.loads(body_of(LeaseRecord(key="0"), token=""))

    del fields["record"]
    assert fields == {
        "partitionId": "0",
        "owner": "",
        "epoch": -1,
        "token": "",
        "sequenceNumber": 0,
    }
    assert metadata_of(LeaseRecord(key="0")) == {}


def test_checkpoint_is_a_hosts_pair_of_offset_and_number() -> None:
    """A host resumes from what we store, and we from what it stores; its epoch is ours less one."""
    held = LeaseRecord(key="0", owner="w 1", epoch=5, checkpoint=Position("17", offset="4096"))

    fields = json.loads(body_of(held, token="t"))

    assert (fields["owner"], fields["epoch"], fields["token"]) == ("w 1", 4, "t")
    assert (fields["sequenceNumber"], fields["offset"]) == (17, "4096")
    assert metadata_of(held) == {"owninghost": "w%201"}
    read = read_body(_by_a_host(sequenceNumber=17, offset="4096"), key="0", name=NAME)
    assert read.record == LeaseRecord(
        key="0", owner="h1", epoch=5, checkpoint=Position("17", offset="4096")
    )
    assert read.token == "t"


@pytest.mark.parametrize(
    "position",
    [
        Position("TRIM_HORIZON"),
        Position("17"),
        Position("17", 1, offset="4096"),
        Position(str(SEQUENCE_NUMBER_MAX + 1), offset="4096"),
    ],
)
def test_position_that_a_host_cannot_read_is_ours_alone(position: Position) -> None:
    """It would be read as another place; a host that takes over begins where its options say."""
    record = LeaseRecord(key="0", checkpoint=position)
    body = body_of(record, token="")

    assert "offset" not in json.loads(body)
    assert read_body(body, key="0", name=NAME).record == record


@pytest.mark.parametrize("offset", [None, ""])
def test_checkpoint_without_offset_is_none(offset: str | None) -> None:
    """Event Processor Host: `getCheckpoint` of a holder whose offset is empty is none, whatever its number."""
    read = read_body(_by_a_host(sequenceNumber=17, offset=offset), key="0", name=NAME)

    assert read.record.checkpoint is None


def test_host_that_takes_over_drops_what_it_does_not_know() -> None:
    """What stays is its owner, its epoch and its checkpoint; a pending position of ours is gone."""
    ours = LeaseRecord(key="0", epoch=2, owner="w1", pending=Position("3"))
    fields = json.loads(body_of(ours, token="t1"))
    del fields["record"]

    read = read_body(json.dumps(fields | {"owner": "h1", "epoch": 2}).encode(), key="0", name=NAME)

    assert read.record == LeaseRecord(key="0", epoch=3, owner="h1")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "expected JSON"),
        (b"[]", "Expected `object`"),
        (b"\xff", "expected JSON"),
        (_by_a_host(epoch="4"), r"Expected `int`.*\$\.epoch"),
        (_by_a_host(epoch=-2), "epoch"),
        (_by_a_host(token=7), r"Expected `str.*\$\.token"),
        (_by_a_host(offset="1", sequenceNumber=-1), "position.seq"),
        (_by_a_host(owner="w" * 300), "lease.owner"),
    ],
)
def test_unreadable_body_says_where_it_is(body: bytes, problem: str) -> None:
    """Who is to repair it needs the blob's name and the field's."""
    with pytest.raises(InvalidStateError, match=problem) as raised:
        read_body(body, key="0", name=NAME)

    assert NAME in str(raised.value)
