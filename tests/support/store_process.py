"""A process that holds a shard's store, for tests that stop it with a signal: one command a line, one answer a line.

python -m tests.support.store_process json_file DIRECTORY ROOT
python -m tests.support.store_process sql URL ROOT
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from broadsheet.consumer.application import Store
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard


@contextmanager
def open_store(kind: str, location: str, shard: FixedShard) -> Iterator[Store]:
    """Open a new holder; destroy it in the end."""
    if kind == "json_file":
        files = JsonFileStore(shard, Path(location), initial=dict[str, int]())
        yield files
        files.destroy()
        return
    engine = sa.create_engine(location)
    try:
        rows = SqlStore(shard, engine, takeover_seconds=0.2)
        yield rows
        rows.destroy()
    finally:
        engine.dispose()


class Holder:
    """Performs commands on one store."""

    def __init__(self, store: Store, shard: FixedShard) -> None:
        self._shard = shard
        self._store = store
        self._appends: Future[object] = Future()
        self._commit: OpFuture | None = None

    def perform(self, command: str) -> str:
        """Return the answer."""
        match command:
            case "restore":
                checkpoint = self._store.restore_checkpoint(self._shard)
                return f"restored {checkpoint.sources['in'].read_through}"
            case "begin":  # A transaction is open; for SQL, in the database too.
                if isinstance(self._store, SqlStore):
                    self._store.connection.execute(sa.text("SELECT 1"))
                return "begun"
            case "start_commit":  # It waits for an append.
                checkpoint = Checkpoint()
                checkpoint.sources["in"].read_through = 666
                self._commit = self._store.start_commit(self._shard, checkpoint, (self._appends,))
                return "started"
            case "append":
                self._appends.set_result(None)
                assert self._commit is not None
                self._commit.result(30)
                return "committed"
        raise ValueError(f"unknown command {command!r}")


def main() -> None:
    """Answer commands until the input ends."""
    kind, location, root = sys.argv[1:4]
    shard = FixedShard(root=root)
    with open_store(kind, location, shard) as store:
        holder = Holder(store, shard)
        for line in sys.stdin:
            try:
                answer = holder.perform(line.strip())
            except Exception as error:
                answer = f"{type(error).__name__}: {error}".replace("\n", " ")
            print(answer, flush=True)


if __name__ == "__main__":
    main()
