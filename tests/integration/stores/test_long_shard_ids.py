"""Ids of shards as long as Apply accepts them, 512 bytes: each store finds its own again, and nobody else's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from broadsheet.consumer.recoverylog.local_state import directory_name
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.recovery import new_directory
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.testing.stores.subject import offset_of, reading, wait
from tests.support.fixed_shard import FixedShard

SIZES = (85, 86, 249, 250, 512)


def ids(size: int) -> list[str]:
    """Return ids that differ in their last letter alone, with slashes and letters that a name of a file encodes."""
    begins = ("s/" * size, "x" * size, "ä" * size)
    fit = [begin.encode()[: size - 2].decode(errors="ignore") for begin in begins]
    return [f"{begin}{end}" for begin in fit for end in "ab"]


def commit_each(new_store: Any, shards: list[FixedShard]) -> None:
    """Commit another offset for each shard, and see that each finds its own."""
    for offset, shard in enumerate(shards, 1):
        store = new_store(shard)
        assert offset_of(store.restore_checkpoint(shard)) == 0
        wait(store.start_commit(shard, reading(offset), ()))
        store.destroy()
    for offset, shard in enumerate(shards, 1):
        store = new_store(shard)
        assert offset_of(store.restore_checkpoint(shard)) == offset
        store.destroy()


@pytest.mark.parametrize("size", SIZES)
def test_files_of_a_shard_with_a_long_id_are_its_own(tmp_path: Path, size: int) -> None:
    """A file's name has 255 bytes; percent-encoding makes three of each slash."""
    shards = [FixedShard(each) for each in ids(size)]

    commit_each(lambda shard: JsonFileStore(shard, tmp_path, initial={}), shards)

    assert {path.name for path in tmp_path.iterdir()} == {
        directory_name(each.id) for each in shards
    }


def test_directory_of_a_short_id_keeps_its_name() -> None:
    """States that are there are found."""
    assert directory_name("counter/part-000") == "counter%2Fpart-000"
    assert directory_name("x" * 255) == "x" * 255


@pytest.mark.postgresql
@pytest.mark.parametrize("size", SIZES)
def test_rows_of_a_shard_with_a_long_id_are_its_own(postgresql_url: str, size: int) -> None:
    """The tables' key has 255 characters, as Gazette's."""
    engine = sa.create_engine(postgresql_url)
    shards = [FixedShard(each, root=f"/long-{size}") for each in ids(size)]

    commit_each(lambda shard: SqlStore(shard, engine), shards)
    engine.dispose()


@pytest.mark.postgresql
def test_row_in_an_applications_own_longer_column_is_found(postgresql_url: str) -> None:
    """A table that was made with a longer key holds the whole name; to begin beside it would apply all again."""
    engine = sa.create_engine(postgresql_url)
    shard = FixedShard("x" * 400)
    checkpoint = reading(7).SerializeToString()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE own (shard_fqn TEXT PRIMARY KEY, fence INT NOT NULL, checkpoint BYTEA NOT NULL)"
        )
        connection.execute(
            sa.text("INSERT INTO own VALUES (:fqn, 3, :checkpoint)"),
            {"fqn": shard.fqn, "checkpoint": checkpoint},
        )

    store = SqlStore(shard, engine, table_name="own", create_table=False)

    assert offset_of(store.restore_checkpoint(shard)) == 7
    wait(store.start_commit(shard, reading(8), ()))
    store.destroy()
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM own").scalar() == 1
        connection.exec_driver_sql("DROP TABLE own")
    engine.dispose()


def test_directory_of_a_recorded_life_fits_into_a_name(tmp_path: Path) -> None:
    """The copy that a standby plays into is named by its shard, too."""

    class Environment:
        state_directory = tmp_path
        random_bytes = random.Random(0).randbytes

    for shard_id in ids(512):
        directory = new_directory(cast("ShardEnvironment", Environment), shard_id)
        directory.mkdir()
