"""Records as JSON."""

from __future__ import annotations

import pytest

from broadsheet.leases.codec import decode, encode
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.testing.leases.suite import full_record


def test_record_is_short_and_readable() -> None:
    """What has its default is not written: there are many records."""
    record = LeaseRecord(
        key="shard-1", epoch=3, counter=17, owner="w1", checkpoint=Position("4711")
    )

    assert encode(record) == (
        '{"key":"shard-1","epoch":3,"counter":17,"owner":"w1","checkpoint":["4711",0]}'
    )
    assert decode(encode(LeaseRecord(key="a")), key="a") == LeaseRecord(key="a")


def test_fields_of_a_newer_version_are_kept() -> None:
    """An older worker in the same fleet must not undo what a newer one wrote."""
    text = '{"key":"a","counter":1,"region":{"name":"eu","zones":[1,2]},"weight":1.50}'

    record = decode(text, key="a")

    assert record.attrs == {"region": '{"name":"eu","zones":[1,2]}', "weight": "1.5"}
    assert decode(encode(record), key="a") == record


def test_empty_state_is_a_state() -> None:
    """An application that prepares with b"" finds b"", and not None."""
    record = LeaseRecord(key="a", pending=Position("7"), pending_state=b"")

    assert decode(encode(record), key="a") == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"key":7}',
        '{"key":"a","counter":"1"}',
        '{"key":"a","counter":-1}',
        '{"key":"a","owner":""}',
        '{"key":"a","checkpoint":"7"}',
        '{"key":"a","checkpoint":["bogus",0]}',
        '{"key":"a","checkpoint":["7"]}',
        '{"key":"a","pending":["7",0],"pending_state":"?"}',
        '{"key":"a","hash_range":["1"]}',
        b'{"key":"\xff"}',
    ],
)
def test_spoilt_record_is_told_with_its_key(text: str | bytes) -> None:
    """The error names the lease, and what to do."""
    with pytest.raises(InvalidStateError, match=r"^lease a: its record cannot be read: .*restore"):
        decode(text, key="a")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"key":7}', "key"),
        ('{"key":"a","epoch":true}', "epoch"),
        ('{"key":"a","counter":1.0}', "counter"),
        ('{"key":"a","checkpoint":["7",null]}', "checkpoint"),
        ('{"key":"a","pending":["7",0],"pending_state":"?"}', "pending_state"),
        ('{"key":"a","parents":["b",1]}', "parents"),
        ('{"key":"a","hash_range":["1","2","3"]}', "hash_range"),
        ('{"key":"a","handoff_from":"b"}', "handoff_from"),
    ],
)
def test_spoilt_field_is_named(text: str, field: str) -> None:
    """An operator who restores one of many fields by hand must know which."""
    with pytest.raises(InvalidStateError, match=rf"^lease a: its record .*\b{field}\b"):
        decode(text, key="a")


def test_record_under_another_key_is_refused() -> None:
    """A copy under a wrong key would be two shards with one name."""
    with pytest.raises(InvalidStateError, match="lease b: its record is that of shard-1"):
        decode(encode(full_record()), key="b")
