"""State in a RocksDB of the shard's own, in its recovery log or on a disk that stays. Needs the extra `[rocksdb]`."""

from broadsheet.consumer.stores.rocksdb.store import RocksDbStore

__all__ = ["RocksDbStore"]
