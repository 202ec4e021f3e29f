"""Versions of PySpark: what each has, as far as we need it.

Source: `pyspark.sql.datasource` came with 4.0, its Arrow writers of streams, `arrow_udf` and
`repartitionById` with 4.1, and the limits of what a micro-batch reads, `pyspark.sql.streaming.datasource`, with 4.2.
"""

from __future__ import annotations

import re
from typing import Final

import pyspark

from broadsheet.spark_bridge.errors import SparkVersionError

MEMBERS_MIN: Final = (4, 0)
"""For members on executors, calls of shards from tasks, and shards as tables."""
PUBLISHING_MIN: Final = (4, 1)
"""For `publish_dataframe` and `journal_index`."""
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
    if not is_spark_at_least(minimum, version=present):
        raise SparkVersionError(feature, minimum, present)


def is_spark_at_least(minimum: tuple[int, int], *, version: str = "") -> bool:
    """Tell whether PySpark is of a version or later; a build whose version says nothing is its maker's business.

    Args:
        minimum: The first version that will do.
        version: Of PySpark; empty: this process'.
    """
    numbers = _NUMBERS.match(version or str(pyspark.__version__))
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= minimum
