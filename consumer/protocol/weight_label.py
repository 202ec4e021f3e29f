"""The label by which a shard says what it weighs.

Counted in thousandths, so that weights add up exactly.
"""

from __future__ import annotations

import re

from allocator.errors import ValidationError
from consumer.protocol.alphabet import shown
from consumer.protocol.journal_pb2 import LabelSet
from consumer.protocol.labels import WEIGHT, values_of

WEIGHT_THOUSANDTHS_MAX = 1_000_000_000
"""A million: sums over a million shards are still exact wherever they are shown."""
_DECIMAL = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,3}))?")


def weight_thousandths(labels: LabelSet) -> int | None:
    """Return the declared weight in thousandths, from 1; None if there is no such label.

    Raises:
        ValidationError: the label's value is no weight.
    """
    values = values_of(labels, WEIGHT)
    if not values:
        return None
    match = _DECIMAL.fullmatch(values[0])
    thousandths = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0")) if match else 0
    if not 0 < thousandths <= WEIGHT_THOUSANDTHS_MAX:
        raise ValidationError(
            f"labels[{WEIGHT}]",
            "expected a decimal above 0, up to 1000000, with at most three places, such as 2 or 0.25; "
            f"got {shown(values[0])}",
        )
    return thousandths
