"""Databases that were set up before `SqlStore` had a second table: shards must go on there as they did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard

pytestmark = pytest.mark.postgresql

USER = "producers_table_user"
_COLUMNS = "shard_fqn VARCHAR(255) PRIMARY KEY, fence INTEGER NOT NULL, checkpoint BYTEA NOT NULL"
_SEGMENT_COLUMNS = "shard_fqn VARCHAR(255), id BYTEA, content BYTEA, PRIMARY KEY (shard_fqn, id)"


@pytest.fixture
def admin(postgresql_url: str) -> Iterator[sa.Engine]:
    """A superuser, who made a role that may use what is granted to it and create nothing."""
    engine = sa.create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {USER} LOGIN")
        connection.exec_driver_sql(f"CREATE SCHEMA {USER}")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {USER} TO {USER}")
        connection.exec_driver_sql(f"ALTER ROLE {USER} SET search_path = {USER}")
    yield engine
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA {USER} CASCADE")
        connection.exec_driver_sql(f"DROP OWNED BY {USER}")
        connection.exec_driver_sql(f"DROP ROLE {USER}")
    engine.dispose()


@pytest.fixture
def user(admin: sa.Engine) -> Iterator[sa.Engine]:
    """That role."""
    engine = sa.create_engine(admin.url.set(username=USER))
    yield engine
    engine.dispose()


def set_up(admin: sa.Engine, *, privileges: str | None) -> None:
    """Create the first table for the role, and the second with these privileges; None: without it."""
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {USER}.gazette_checkpoints ({_COLUMNS})")
        connection.exec_driver_sql(f"GRANT ALL ON {USER}.gazette_checkpoints TO {USER}")
        if privileges is None:
            return
        second = f"{USER}.gazette_checkpoints_producers"
        connection.exec_driver_sql(f"CREATE TABLE {second} ({_SEGMENT_COLUMNS})")
        if privileges:
            connection.exec_driver_sql(f"GRANT {privileges} ON {second} TO {USER}")


def lives_on(engine: sa.Engine, *, table_name: str = "gazette_checkpoints") -> bool:
    """Commit in one life and restore in the next; return whether the store kept segments."""
    shard = FixedShard("shard-1")
    checkpoint = Checkpoint()
    checkpoint.sources["a/journal"].read_through = 7
    first = SqlStore(shard, engine, table_name=table_name)
    first.restore_checkpoint(shard)
    first.start_commit(shard, checkpoint, ()).result(10)
    first.destroy()
    second = SqlStore(shard, engine, table_name=table_name)
    assert second.restore_checkpoint(shard) == checkpoint
    second.destroy()
    return second.keeps_segments


@pytest.mark.parametrize(
    ("privileges", "keeps"),
    [(None, False), ("", False), ("SELECT", False), ("SELECT, INSERT, DELETE", True)],
)
def test_second_table_is_used_only_where_this_user_may(
    admin: sa.Engine, user: sa.Engine, privileges: str | None, *, keeps: bool
) -> None:
    """A role without CREATE, and a second table that is absent, or that somebody created and granted not at all, or
    not enough: a shard must not fail for the want of what only makes its checkpoints shorter.
    """
    set_up(admin, privileges=privileges)

    assert lives_on(user) is keeps


def test_name_as_long_as_the_database_allows_leaves_room_for_the_second_table(
    admin: sa.Engine,
) -> None:
    """A table of 63 bytes worked before there was a second one, whose name is longer; two such names stay apart."""
    names = [f"{prefix}{'x' * 61}" for prefix in ("a_", "b_")]
    with admin.connect() as connection:
        before = set(sa.inspect(connection).get_table_names())
        try:
            for name in names:
                assert lives_on(admin, table_name=name)
            made = set(sa.inspect(connection).get_table_names()) - before
        finally:
            for name in set(sa.inspect(connection).get_table_names()) - before:
                connection.exec_driver_sql(f'DROP TABLE "{name}"')

    assert len(made) == 4
    assert made > set(names)
