"""Places in a shard, and their order.

Names in backticks are upstream's, awslabs/amazon-kinesis-client `retrieval.kpl.ExtendedSequenceNumberTest`.
"""

from __future__ import annotations

import itertools

import pytest

from broadsheet.leases.errors import InvalidPositionError
from broadsheet.leases.position import (
    AT_TIMESTAMP,
    LATEST,
    SHARD_END,
    SUB_MAX,
    TRIM_HORIZON,
    Position,
)

KINESIS_NUMBER = "49587497311274533994574834252742144236107130636007899138"
"""Of 186 bits."""

IN_ORDER = [
    Position(AT_TIMESTAMP),
    Position(TRIM_HORIZON),
    Position(LATEST),
    Position("0"),
    Position("9"),
    Position("9", 1),
    Position("9", SUB_MAX),
    Position("10"),
    Position(KINESIS_NUMBER),
    Position(KINESIS_NUMBER, 1),
    Position(KINESIS_NUMBER + "0"),
    Position(SHARD_END),
]


def test_positions_have_one_order() -> None:
    """Numbers by value and not by text, starts below them, the end above: each pair is ordered as it stands here."""
    for (i, first), (j, second) in itertools.product(enumerate(IN_ORDER), repeat=2):
        assert (first < second, first == second, first > second) == (i < j, i == j, i > j)


@pytest.mark.parametrize("name", [AT_TIMESTAMP, TRIM_HORIZON, LATEST, SHARD_END])
def test_name_stays_itself_with_any_sub(name: str) -> None:
    """`testSentinelCheckpoints`: each is recognised, with and without a sub-sequence, and is the same place."""
    assert Position(name).is_name
    assert Position(name, 42) == Position(name)
    assert hash(Position(name, 42)) == hash(Position(name))
    assert not Position("42").is_name


def test_leading_zeros_are_no_difference() -> None:
    """Upstream's "007" and "7" compare alike and are not equal; here they are one, in the form that is written."""
    assert Position("007", 3) == Position("7", 3)
    assert Position("000").seq == "0"


@pytest.mark.parametrize(
    "text",
    ["", " 7", "-7", "+7", "7.0", "bogus", "shard_end", "\u0667", "\u00b2", "7\n", "9" * 1_001],
)
def test_malformed_position_is_refused(text: str) -> None:
    """Also digits of other scripts, which Java and Python take for digits."""
    with pytest.raises(InvalidPositionError, match=r"position\.seq: expected"):
        Position(text)


@pytest.mark.parametrize("sub", [-1, 2**63, True])
def test_sub_out_of_range_is_refused(sub: int) -> None:
    """Stores hold it in 64 bits, signed."""
    with pytest.raises(InvalidPositionError, match=r"position\.sub: expected"):
        Position("7", sub)


def test_positions_of_one_number_and_two_offsets_are_neither_before_nor_after() -> None:
    """The broker's offset says nothing about order, whichever comparison is asked."""
    one, other = Position("7", offset="a"), Position("7", offset="b")

    assert one != other
    assert one <= other <= one
    assert one >= other
    assert not one < other
    assert not one > other
