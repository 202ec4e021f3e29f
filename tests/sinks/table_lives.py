"""`DeltaStore` and `IcebergStore` for `sink_lives`: die around the steps of a commit, or anywhere in it."""

from __future__ import annotations

import sqlite3  # noqa: F401 - see below
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

# What a first commit would import: half a second of each life, which is forked from this process.
import pandas as pd  # type: ignore[import-untyped]  # noqa: F401
import pyarrow as pa
import pyarrow.dataset
import pyiceberg.avro.decoder_fast
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401
import sqlalchemy.dialects.sqlite  # noqa: F401
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

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


def tidy(config: dict[str, Any]) -> None:
    """Forget the snapshots of an Iceberg table but the last: its metadata grows with each, and so does a life."""
    if "catalog" not in config:
        return
    with closing(load_catalog("default", **config["catalog"])) as catalog:
        if catalog.table_exists(config["table"]):
            table = catalog.load_table(config["table"])
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


def publish(store: Any, number: int) -> None:
    """Append a number."""
    store.append(pa.table({"n": [number]}, SCHEMA))
