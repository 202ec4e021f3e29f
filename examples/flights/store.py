"""The aircraft of one shard: in memory while it is the primary, in SQL tables with every commit."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from broadsheet.consumer import Checkpoint, Shard
from broadsheet.consumer.stores import SqlStore
from broadsheet.examples.flights.aircraft import Aircraft

_METADATA = sa.MetaData()
_TOTALS = (
    "flights",
    "legs",
    "late_minutes",
    "turnarounds",
    "ground_minutes",
    "longest_gap_minutes",
    "alerts",
)
_TABLE = sa.Table(
    "aircraft",
    _METADATA,
    sa.Column("shard_fqn", sa.String(255), primary_key=True),
    sa.Column("aircraft", sa.String(64), primary_key=True),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in _TOTALS),
    sa.Column("landed_at", sa.BigInteger),
)
_CREATE_LOCK = 0x666C7967
"""Key of the advisory lock under which PostgreSQL's table is created; any fixed number."""


class FlightStore(SqlStore):
    """An SQL store that keeps its shard's aircraft in memory too: some 500, so all of them."""

    def __init__(self, shard: Shard, engine: Engine) -> None:
        super().__init__(shard, engine)
        self._engine = engine
        self._shard_fqn = shard.fqn
        self._changed: set[str] = set()
        self.aircraft: dict[str, Aircraft] = {}
        """By tail number. Changes are noted with `changed`; they are in the next commit."""

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Fence older holders, and load the aircraft as of the last commit."""
        checkpoint = super().restore_checkpoint(shard)
        _create_table(self._engine)
        # Older primaries can no longer commit, so what is read now stays true.
        self.aircraft = self.read(self._load)
        return checkpoint

    def changed(self, tail_number: str) -> None:
        """Note that an aircraft must be written with the current transaction."""
        self._changed.add(tail_number)

    def flush(self) -> None:
        """Write the changed aircraft within the current transaction."""
        if not self._changed:
            return
        rows = [
            {
                "shard_fqn": self._shard_fqn,
                "aircraft": tail_number,
                **asdict(self.aircraft[tail_number]),
            }
            for tail_number in sorted(self._changed)
        ]
        self.connection.execute(self._upsert(), rows)
        self._changed.clear()

    def _load(self, connection: Connection) -> dict[str, Aircraft]:
        query = sa.select(_TABLE).where(_TABLE.c.shard_fqn == self._shard_fqn)
        return {
            row["aircraft"]: Aircraft(
                **{name: row[name] for name in _TOTALS}, landed_at=row["landed_at"]
            )
            for row in connection.execute(query).mappings()
        }

    def _upsert(self) -> sa.Insert:
        insert = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        statement = insert(_TABLE)
        return statement.on_conflict_do_update(
            index_elements=[_TABLE.c.shard_fqn, _TABLE.c.aircraft],
            set_={name: statement.excluded[name] for name in (*_TOTALS, "landed_at")},
        )


def _create_table(engine: Engine) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            # Creating a table "if not exists" fails when two do it at once.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATE_LOCK)))
        _METADATA.create_all(connection)
