"""Column families as Arrow shows them."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING

from consumer.state_tables import ROWS_PER_BATCH
from consumer.stores.rocksdb.committed_view import CommittedView

if TYPE_CHECKING:
    import pyarrow as pa


def family_schema() -> pa.Schema:
    """Return the columns of every column family."""
    import pyarrow as pa

    return pa.schema([("key", pa.binary()), ("value", pa.binary())])


def family_batches(
    view: CommittedView, family: str, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the items of a family, in order of keys, with the columns of `schema`."""
    import pyarrow as pa

    items = view.items(family=family)
    while part := list(islice(items, ROWS_PER_BATCH)):
        keys, values = zip(*part, strict=True)
        by_name = {"key": keys, "value": values}
        arrays = [pa.array(by_name[name], type=pa.binary()) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
