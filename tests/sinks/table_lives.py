"""`DeltaStore` and `IcebergStore` for `sink_lives`: die around the steps of a commit, or anywhere in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from broadsheet.consumer.application import Shard
from broadsheet.consumer.stores.delta import store as delta_store
from broadsheet.consumer.stores.delta.files import TableFiles
from broadsheet.consumer.stores.delta.store import DeltaStore
from broadsheet.consumer.stores.iceberg.store import IcebergStore
from tests.sinks.sink_lives import TIMED

PLACES = ("before", "checkpointed", "committed", "after", TIMED, TIMED, "zombie-before")
SCHEMA = pa.schema([pa.field("n", pa.int64())])


def open_store(config: dict[str, Any], shard: Shard, die: Callable[[str], None]) -> Any:
    """Return a store whose commits die."""
    if "catalog" in config:
        return IcebergStore(shard, config["table"], config["catalog"], schema=SCHEMA)

    class DyingFiles(TableFiles):
        """Files after one of which the process may end, before the table's commit."""

        def write(self, name: str, content: bytes) -> None:
            super().write(name, content)
            die("checkpointed")

    def dying_append(*arguments: Any, **options: Any) -> None:
        write_deltalake(*arguments, **options)
        die("committed")

    # In this process alone, which is one life.
    vars(delta_store).update(TableFiles=DyingFiles, write_deltalake=dying_append)
    return DeltaStore(shard, config["table"], schema=SCHEMA)


def publish(store: Any, number: int) -> None:
    """Append a number."""
    store.append(pa.table({"n": [number]}, SCHEMA))
