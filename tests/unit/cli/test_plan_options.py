"""`--add` of `shardctl plan`: which members it names, and what it refuses in one line."""

from __future__ import annotations

import pytest

from broadsheet.cli.plan import parse_new_members
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.allocation_pb2 import NewMembers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zone-a:2", NewMembers(zone="zone-a", count=2)),
        ("zone-a:2:40", NewMembers(zone="zone-a", count=2, limit=40)),
    ],
)
def test_new_members_are_a_zone_a_number_and_perhaps_a_limit(
    text: str, expected: NewMembers
) -> None:
    """Without a limit they take what members of their zone take."""
    assert parse_new_members(text) == expected


@pytest.mark.parametrize(
    "text", ["", "zone-a", ":2", "zone-a:", "zone-a:two", "zone-a:-1", "zone-a:1:2:3"]
)
def test_new_members_of_another_form_are_refused(text: str) -> None:
    """The error shows the form."""
    with pytest.raises(ValidationError, match="expected ZONE:N or ZONE:N:LIMIT"):
        parse_new_members(text)


@pytest.mark.parametrize("text", ["zone-a:4294967296", "zone-a:1:99999999999"])
def test_new_members_beyond_what_the_protocol_can_say_are_refused(text: str) -> None:
    """Named as what it is, and not by the library that cannot write it."""
    with pytest.raises(ValidationError, match="up to 4294967295"):
        parse_new_members(text)
