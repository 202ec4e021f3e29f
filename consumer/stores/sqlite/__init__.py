"""State in a SQLite file of the shard's own, in its recovery log or on a disk that stays."""

from broadsheet.consumer.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
