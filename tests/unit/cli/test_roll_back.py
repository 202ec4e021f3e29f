"""The producer of a transaction that is rolled back, as it is typed."""

from __future__ import annotations

import pytest

from tests.support.shardctl_runs import shardctl


@pytest.mark.parametrize(
    "producer", ["", "0", "-1", "zz", "1_0", " 0b5e71c2a9d", "0x0b5e71c2a9", "f" * 13, "f" * 32]
)
def test_producer_is_twelve_hexadecimal_digits(producer: str) -> None:
    """Anything else is refused before a member is asked: a number that is read otherwise is another producer's."""
    ran = shardctl(f"shardctl journals roll-back orders/000 --producer '{producer}'")

    assert ran.status == 2
    assert f"--producer: expected 12 hexadecimal digits, got {producer!r}" in ran.stderr
