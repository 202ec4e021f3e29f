"""Versions of PySpark: what each has, as far as we need it.

Source: `pyspark.sql.datasource` came with 4.0, its Arrow writers of streams with 4.1, and the limits of what a
micro-batch reads, `pyspark.sql.streaming.datasource`, with 4.2.
"""

from __future__ import annotations

import re
from typing import Final

import pyspark

from broadsheet.spark_bridge.errors import SparkVersionError

MEMBERS_MIN: Final = (4, 0)
"""For members on executors, calls of shards from tasks, and shards as tables."""
JOURNALS_MIN: Final = (4, 2)
"""For the format "journal"."""
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")


def require_spark(feature: str, minimum: tuple[int, int], *, version: str = "") -> None:
    """Refuse a feature that needs a later PySpark than there is.

    Args:
        feature: Named by the error.
        minimum: The first version that has what it needs.
        version: Of PySpark; empty: this process'.

    Raises:
        SparkVersionError: it does.
    """
    present = version or str(pyspark.__version__)
    numbers = _NUMBERS.match(present)
    # A build whose version says nothing is its maker's business.
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < minimum:
        raise SparkVersionError(feature, minimum, present)
