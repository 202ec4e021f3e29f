"""The level of a cluster's stored formats: who may join, and how far it may rise."""

from __future__ import annotations

import pytest

from broadsheet.allocator.errors import FormatLevelError
from broadsheet.allocator.format_levels import (
    StoredLevel,
    check_joining,
    check_rise,
    decode_level,
    encode_level,
)
from broadsheet.allocator.ops import KeyValue

KEY = b"/broadsheet.v1/root/formats"


def stored(value: bytes) -> KeyValue:
    """Return a key of etcd."""
    return KeyValue(key=KEY, value=value, create_revision=1, mod_revision=7, version=1, lease=0)


def test_level_is_the_first_without_a_record_and_else_the_one_that_was_written() -> None:
    """Clusters of before levels have no record: everything in them is read by every release."""
    assert decode_level(None) == StoredLevel(1, "", 0)
    assert decode_level(stored(encode_level(2, "0.3.0"))) == StoredLevel(2, "0.3.0", 7)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"{", "/broadsheet.v1/root/formats"),
        (b'{"level": "two"}', "level"),
        (b'{"min_reader": 2, "levels": {}}', "a later release wrote the cluster's level"),
    ],
)
def test_record_that_this_release_cannot_read_is_refused_by_name(value: bytes, told: str) -> None:
    """To take an unreadable level for the first would admit a member that misreads the cluster."""
    with pytest.raises(FormatLevelError, match=told):
        decode_level(stored(value))


def test_member_joins_up_to_its_own_level() -> None:
    """A downgrade below what was stored is refused with the release that raised it, and what to do."""
    check_joining(StoredLevel(2), 2)
    check_joining(StoredLevel(1), 2)
    with pytest.raises(FormatLevelError) as refused:
        check_joining(StoredLevel(3, "0.4.0", 9), 2)
    assert "raised to level 3 by release 0.4.0" in str(refused.value)
    assert "reads them up to level 2: start that release" in str(refused.value)


def test_rise_names_the_members_that_are_below() -> None:
    """One earlier member is enough to misunderstand; hundreds are not listed."""
    levels = {f"a#m-{n}": 1 + (n > 6) for n in range(9)}
    check_rise(1, levels, what="a thing")
    check_rise(2, {}, what="a thing")
    with pytest.raises(FormatLevelError) as refused:
        check_rise(2, levels, what="a thing")
    assert str(refused.value).startswith("a thing needs stored formats of level 2")
    assert "a#m-0, a#m-1, a#m-2, a#m-3, a#m-4 and 2 more; replace them" in str(refused.value)
