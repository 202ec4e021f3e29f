"""The members that count as earlier lives of another, whose leases are ended."""

from __future__ import annotations

import pytest

from broadsheet.allocator.announcement import Predecessors
from broadsheet.allocator.model import MemberId

OWN = MemberId("a", "m-1")


@pytest.mark.parametrize(
    ("prefix", "suffix", "is_one"),
    [
        ("m-1", "m-1", True),
        ("m-1", "m-1-2", True),
        ("m-1", "m-1.old", True),
        ("m-1", "m-10", False),
        ("m-1", "m-1a", False),
        ("m-1", "m-2", False),
        ("m-", "m-1", True),
        ("m-", "m-0", True),
        ("m-", "m-2", False),
        ("m-", "m-other", True),
    ],
)
def test_predecessors_are_named_whole(prefix: str, suffix: str, is_one: bool) -> None:
    """`--replaces m-1` is about one name: a prefix would end the tenth member as well, which lives."""
    assert Predecessors(prefix=prefix).include(MemberId("a", suffix), of=OWN) is is_one


def test_predecessors_are_of_the_same_zone_unless_their_names_are_unique() -> None:
    """Suffixes are unique in their zones only: another zone's member of this name is another member."""
    elsewhere = MemberId("b", "m-1")

    assert not Predecessors(prefix="m-1").include(elsewhere, of=OWN)
    assert Predecessors(prefix="m-1", in_any_zone=True).include(elsewhere, of=OWN)
