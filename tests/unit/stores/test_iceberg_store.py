"""Iceberg tables that several shards make at once, and what a table says of a shard."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog

from broadsheet.consumer.errors import StoreError, StoreUnavailableError
from broadsheet.consumer.relay.table_outlet import PLACE
from broadsheet.consumer.stores.iceberg.store import IcebergStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.subject import FixedShard
from broadsheet.wire.shard_pb2 import Checkpoint

SHARDS, ROUNDS = 4, 3
SHARD = FixedShard("shard")


def catalog_in(directory: Path) -> dict[str, str]:
    """Return the settings of a catalog in SQLite."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_shards_that_begin_in_a_new_namespace_at_once_all_begin(
    tmp_path: Path, round_: int
) -> None:
    """A catalog in SQL refuses all but one of those who create a namespace; the others find it, and go on."""
    del round_
    catalog = catalog_in(tmp_path)
    load_catalog("default", **catalog).close()  # Its own tables are there.
    barrier = threading.Barrier(SHARDS)

    def begin(number: int) -> bytes:
        shard = FixedShard(f"shard-{number}")
        store = IcebergStore(shard, f"lake.rows_{number}", catalog, schema=PLACE)
        barrier.wait()
        try:
            return store.restore_checkpoint(shard).SerializeToString()
        finally:
            store.destroy()

    with ThreadPoolExecutor(SHARDS) as threads:
        assert list(threads.map(begin, range(SHARDS))) == [b""] * SHARDS


def test_shards_that_begin_in_a_new_catalog_at_once_all_begin(tmp_path: Path) -> None:
    """A catalog in SQL looks for its own tables, then makes them: here another shard has made them in between, and
    pyiceberg's own answer is the database's error.
    """
    catalog, between = catalog_in(tmp_path), list("ab")

    def begin(name: str) -> None:
        store = IcebergStore(FixedShard(name), "lake.rows", catalog, schema=PLACE)
        try:
            assert store.restore_checkpoint(FixedShard(name)).SerializeToString() == b""
        finally:
            store.destroy()

    def on_statement(*statement: object) -> None:
        if "CREATE TABLE iceberg_" in str(statement[2]) and between:
            begin(between.pop())

    sa.event.listen(sa.Engine, "before_cursor_execute", on_statement)
    try:
        begin("first")
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", on_statement)

    assert not between
    opened = load_catalog("default", **catalog)
    versions = [
        each for each in opened.load_table("lake.rows").properties if "broadsheet.version" in each
    ]
    opened.close()
    assert len(versions) == 3


def test_catalog_whose_tables_the_store_may_not_create_is_left_as_it_is(tmp_path: Path) -> None:
    """As pyiceberg's own property says; the database's error is one that may pass."""
    catalog = {**catalog_in(tmp_path), "init_catalog_tables": "false"}
    store = IcebergStore(SHARD, "lake.rows", catalog, schema=PLACE)
    with pytest.raises(StoreUnavailableError, match=r"table lake.rows: .*no such table"):
        store.restore_checkpoint(SHARD)
    store.destroy()


def test_destroyed_store_keeps_no_connection_to_its_catalog(tmp_path: Path) -> None:
    """A shard that is restarted for days would have one more with each life."""
    open_: set[object] = set()

    def note_opened(connection: object, record: object) -> None:
        del record
        open_.add(connection)

    def note_closed(connection: object, record: object) -> None:
        del record
        open_.discard(connection)

    sa.event.listen(sa.Pool, "connect", note_opened)
    sa.event.listen(sa.Pool, "close", note_closed)
    try:
        store = IcebergStore(SHARD, "lake.rows", catalog_in(tmp_path), schema=PLACE)
        store.restore_checkpoint(SHARD)
        assert open_

        store.destroy()

        assert not open_
    finally:
        sa.event.remove(sa.Pool, "connect", note_opened)
        sa.event.remove(sa.Pool, "close", note_closed)


@pytest.mark.parametrize(
    ("prefix", "value"), [("version", "-1"), ("version", "one"), ("checkpoint", "AA==")]
)
def test_property_that_somebody_changed_is_named(tmp_path: Path, prefix: str, value: str) -> None:
    """Properties of a table are anybody's who may write it."""
    catalog = catalog_in(tmp_path)
    store = IcebergStore(SHARD, "lake.rows", catalog, schema=PLACE)
    store.restore_checkpoint(SHARD)
    store.destroy()
    opened = load_catalog("default", **catalog)
    name = f"broadsheet.{prefix}.{SHARD.fqn}"
    with opened.load_table("lake.rows").transaction() as transaction:
        transaction.set_properties({name: value})
    opened.close()

    store = IcebergStore(SHARD, "lake.rows", catalog, schema=PLACE)
    try:
        with pytest.raises(StoreError, match=f"property {name} of table lake.rows is damaged"):
            store.restore_checkpoint(SHARD)
    finally:
        store.destroy()


@pytest.mark.parametrize(
    ("rows", "path"),
    [
        ({"": [1]}, "''"),
        ({"s": [{"": 1}]}, "s.''"),
        ({"a.b": [1], "a": [{"b": 1}]}, "a.b"),
    ],
    ids=["empty", "nested", "ambiguous"],
)
def test_rows_whose_field_iceberg_cannot_name_are_refused_and_the_others_are_kept(
    tmp_path: Path, rows: dict[str, list[Any]], path: str
) -> None:
    """Refused when they are appended, so that a dead-letter journal can take the message; the table goes on."""
    store = IcebergStore(SHARD, "lake.rows", catalog_in(tmp_path), schema=PLACE)
    try:
        store.restore_checkpoint(SHARD)
        with pytest.raises(ValidationError) as refused:
            store.append(pa.table(rows))
        store.append(pa.table({"n": [1]}))
        store.start_commit(SHARD, Checkpoint(), ()).result(30)
    finally:
        store.destroy()

    opened = load_catalog("default", **catalog_in(tmp_path))
    found = opened.load_table("lake.rows").scan().to_arrow().select(["n"]).to_pylist()
    opened.close()
    assert refused.value.field_path == path
    assert found == [{"n": 1}]


def test_first_columns_of_a_table_need_names(tmp_path: Path) -> None:
    """A table whose column has no name could be made, and never be written."""
    with pytest.raises(ValidationError, match="expected a name"):
        IcebergStore(SHARD, "lake.rows", catalog_in(tmp_path), schema=pa.schema({"": pa.int64()}))
