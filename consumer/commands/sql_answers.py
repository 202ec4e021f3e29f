"""Answers in a table of a `SqlStore`'s database.

CREATE TABLE broadsheet_answers (
    shard_fqn VARCHAR(255), id VARCHAR(200), at_ms BIGINT NOT NULL, content BYTEA NOT NULL, PRIMARY KEY (shard_fqn, id))
CREATE INDEX broadsheet_answers_at ON broadsheet_answers (shard_fqn, at_ms)
"""

from __future__ import annotations

import sqlalchemy as sa

from broadsheet.consumer.commands.answers import KeptAnswer
from broadsheet.consumer.stores.sql import SqlStore

_FQN_LENGTH_MAX = 255
_ID_LENGTH_MAX = 200


class SqlAnswers:
    """Keeps answers in a table of the application's database, which all of its shards share.

    The table is one of the application's `metadata`, and is created with its other tables
    (`metadata.create_all(engine)`).
    """

    def __init__(self, metadata: sa.MetaData, *, table_name: str = "broadsheet_answers") -> None:
        """Add the table to `metadata`, under a name that it does not have yet."""
        self._table = sa.Table(
            table_name,
            metadata,
            sa.Column("shard_fqn", sa.String(_FQN_LENGTH_MAX), primary_key=True),
            sa.Column("id", sa.String(_ID_LENGTH_MAX), primary_key=True),
            sa.Column("at_ms", sa.BigInteger, nullable=False),
            sa.Column("content", sa.LargeBinary, nullable=False),
            sa.Index(f"{table_name}_at", "shard_fqn", "at_ms"),
        )

    def get(self, store: SqlStore, command_id: str) -> KeptAnswer | None:
        """Return the answer of a command; None if there is none."""
        columns = self._table.c
        found = store.connection.execute(
            sa.select(columns.at_ms, columns.content).where(
                columns.shard_fqn == store.shard_key, columns.id == command_id
            )
        ).one_or_none()
        return None if found is None else KeptAnswer(found.at_ms, found.content)

    def keep(self, store: SqlStore, command_id: str, answer: KeptAnswer) -> None:
        """Keep an answer in the running transaction."""
        store.connection.execute(
            self._table.insert(),
            {
                "shard_fqn": store.shard_key,
                "id": command_id,
                "at_ms": answer.at_ms,
                "content": answer.content,
            },
        )

    def forget(self, store: SqlStore, before_ms: int, limit: int) -> int:
        """Remove the oldest answers from before a time."""
        columns = self._table.c
        own = columns.shard_fqn == store.shard_key
        oldest = (
            sa.select(columns.id)
            .where(own, columns.at_ms < before_ms)
            .order_by(columns.at_ms)
            .limit(limit)
        )
        return store.connection.execute(
            self._table.delete().where(own, columns.id.in_(oldest))
        ).rowcount
