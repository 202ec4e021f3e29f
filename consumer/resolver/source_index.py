"""Which shards read a journal: kept up to date one shard at a time."""

from __future__ import annotations

from allocator.model import ItemId
from consumer.protocol.shard_pb2 import ShardSpec


class ShardsBySource:
    """Specs by the journals that they name as sources."""

    def __init__(self) -> None:
        self._specs: dict[ItemId, ShardSpec] = {}
        self._readers: dict[str, dict[ItemId, ShardSpec]] = {}

    def reading(self, journal: str) -> tuple[ShardSpec, ...]:
        """Return the specs, by shard id, that have `journal` as a source."""
        readers = self._readers.get(journal)
        return () if readers is None else tuple(readers[key] for key in sorted(readers))

    def replace(self, shard_id: ItemId, spec: ShardSpec | None) -> None:
        """Take a shard's spec as it is now; None if the shard is gone."""
        before = self._specs.pop(shard_id, None)
        for source in () if before is None else before.sources:
            readers = self._readers.get(source.journal)
            if readers is None:
                continue  # a journal that the spec named twice
            readers.pop(shard_id, None)
            if not readers:
                del self._readers[source.journal]
        if spec is None:
            return
        self._specs[shard_id] = spec
        for source in spec.sources:
            self._readers.setdefault(source.journal, {})[shard_id] = spec
