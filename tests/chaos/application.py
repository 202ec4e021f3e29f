"""The sums of streams, in stores whose class a shard's label may name: what a careless release does."""

from __future__ import annotations

import os
from pathlib import Path

from broadsheet.consumer import Shard
from broadsheet.examples.stream_sum.app import (
    STATE_DIRECTORY_VARIABLE,
    STORE_VARIABLE,
    StreamSums,
)
from broadsheet.examples.stream_sum.store import StreamStore
from broadsheet.wire.labels import value_of

STORE_LABEL = "chaos/store"
"""`json` or `sqlite`; the application's own store, if a shard has no such label."""


class ChaosSums(StreamSums):
    """Adds up streams; looks at the label whenever a shard is restored."""

    def __init__(self, store: str, state_directory: Path) -> None:
        super().__init__(store, state_directory)
        self._others = {kind: StreamSums(kind, state_directory) for kind in ("json", "sqlite")}

    def new_store(self, shard: Shard) -> StreamStore:
        """Return the shard's store."""
        kind = value_of(shard.spec.labels, STORE_LABEL)
        return self._others[kind].new_store(shard) if kind else super().new_store(shard)


def create() -> ChaosSums:
    """Make the application as the environment says."""
    return ChaosSums(os.environ[STORE_VARIABLE], Path(os.environ[STATE_DIRECTORY_VARIABLE]))
