"""The counting application over stores that a recovery log replicates: each member has files of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broadsheet.consumer.application import Shard
from broadsheet.consumer.resolver.resolver import ShardResolver
from broadsheet.consumer.stores.aggregate import Aggregates, AggregateStore, Count
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import Claims
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.broker import journal_spec
from tests.support.tally import Tally

LOGS = "test/logs"

_SCHEMA = "CREATE TABLE IF NOT EXISTS counts (key TEXT PRIMARY KEY, count INTEGER)"
_COUNT = "INSERT INTO counts VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET count = count + 1"


class SqliteTally(Tally):
    """Counts in a SQLite file of the shard's own."""

    def new_store(self, shard: Shard) -> Any:
        """Open what the log replayed to."""
        return SqliteStore(shard, schema=_SCHEMA)

    def count(self, store: Any, key: str) -> None:
        """Add one to the key's count."""
        store.connection.execute(_COUNT, (key,))


class RocksDbTally(Tally):
    """Counts in a RocksDB of the shard's own."""

    def new_store(self, shard: Shard) -> Any:
        """Open what the log replayed to."""
        return RocksDbStore(shard)

    def count(self, store: Any, key: str) -> None:
        """Add one to the key's count."""
        before = store.get(key.encode())
        store.put(key.encode(), str(int(before or b"0") + 1).encode())


class AggregateTally(Tally):
    """Counts in aggregates of the shard's own."""

    def new_store(self, shard: Shard) -> Any:
        """Open what the log replayed to."""
        return AggregateStore(shard, Aggregates(key="key", count=Count()))

    def count(self, store: Any, key: str) -> None:
        """Add one to the key's count."""
        store.update({"key": [key]})


class JsonFileTally(Tally):
    """Counts in a JSON file of the shard's own."""

    def new_store(self, shard: Shard) -> Any:
        """Open what the log replayed to."""
        return JsonFileStore(shard, initial={}, state_type=dict[str, int])

    def count(self, store: Any, key: str) -> None:
        """Add one to the key's count."""
        store.state[key] = store.state.get(key, 0) + 1


def _sqlite_counts(store: Any) -> dict[str, int]:
    def read(connection: sqlite3.Connection) -> dict[str, int]:
        return dict(connection.execute("SELECT key, count FROM counts"))

    counts: dict[str, int] = store.read(read)
    return counts


def _rocksdb_counts(store: Any) -> dict[str, int]:
    return store.read(  # type: ignore[no-any-return]  # A test's view.
        lambda view: {key.decode(): int(value) for key, value in view.items()}
    )


def _aggregate_counts(store: Any) -> dict[str, int]:
    return {row["key"]: row["count"] for row in store.to_arrow().to_pylist()}


def _json_counts(store: Any) -> dict[str, int]:
    state: dict[str, int] = store.committed_state()
    return state


TALLIES: dict[str, tuple[type[Tally], Callable[[Any], dict[str, int]]]] = {
    "sqlite": (SqliteTally, _sqlite_counts),
    "rocksdb": (RocksDbTally, _rocksdb_counts),
    "aggregate": (AggregateTally, _aggregate_counts),
    "json": (JsonFileTally, _json_counts),
}
"""Application and reader of its committed counts, by the kind of its store."""


async def create_logs(journals: JournalClient, *shard_ids: str) -> None:
    """Create the shards' recovery logs."""
    labels = label_set((CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG))
    await journals.apply(
        [
            JournalApply.Change(
                upsert=journal_spec(f"{LOGS}/{shard_id}", labels=labels), expect_mod_revision=0
            )
            for shard_id in shard_ids
        ]
    )


def recorded(spec: ShardSpec, root: str, *, hint_backups: int = 2) -> ShardSpec:
    """Have a shard of the cluster at `root` keep its state in a recovery log."""
    spec.recovery_log_prefix = LOGS
    spec.hint_prefix = f"/hints{root}"
    spec.hint_backups = hint_backups
    return spec


async def counts_of(
    resolver: ShardResolver, shard_id: str, kind: str, *, read_through: dict[str, int]
) -> dict[str, int]:
    """What the shard, whose primary is here, has committed once it has read so far."""
    async with await resolver.resolve(
        shard_id, claims=Claims.process(), may_proxy=False, read_through=read_through
    ) as resolution:
        assert resolution.shard is not None, resolution.status
        counts: dict[str, int] = await resolution.call(TALLIES[kind][1])
        return counts


def files_below(directory: Path) -> list[Path]:
    """Every file below a directory."""
    return [each for each in directory.rglob("*") if each.is_file()]
