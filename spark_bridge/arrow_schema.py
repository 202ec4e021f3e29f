"""Arrow's schemas of Spark's, with times in UTC.

Source: since PySpark 4.2 `to_arrow_schema` takes a `timezone`, and makes timestamps without a zone if it gets none;
earlier ones have no such parameter, and their timestamps are UTC by default. The state of keyed processors, which is
converted without PySpark, has `keyed/schemas.py`.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from broadsheet.spark_bridge.spark_version import is_spark_at_least

_TAKES_ZONE = is_spark_at_least((4, 2))


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark exchanges rows of `schema`; timestamps with a zone are UTC."""
    if _TAKES_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
