"""A process that commits as fast as it can, until it is killed: prints the number of each commit that is durable.

python -m tests.support.committing_process KIND DIRECTORY

At the n-th commit the checkpoint reads n, and so do the keys "last" and "k{n modulo 50}".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from broadsheet.testing.stores.subject import FixedShard, StoreSubject, offset_of, reading, wait
from tests.support.store_subjects import JsonSubject, RocksDbSubject, SqliteSubject, SqlSubject

SHARD = FixedShard(root="/committing")


@contextmanager
def subject_of(kind: str, directory: Path) -> Iterator[StoreSubject]:
    """Return a kind of store that keeps its state in a directory."""
    if kind == "sql":
        engine = sa.create_engine(f"sqlite:///{directory}/state.db")
        try:
            yield SqlSubject(engine, "state")
        finally:
            engine.dispose()
        return
    kinds: dict[str, Callable[[Path], StoreSubject]] = {
        "json_file": JsonSubject,
        "sqlite": SqliteSubject,
        "rocksdb": RocksDbSubject,
    }
    yield kinds[kind](directory)


def main() -> None:
    """Commit for ever."""
    kind, directory = sys.argv[1:3]
    with subject_of(kind, Path(directory)) as subject:
        store = subject.open(SHARD)
        step = offset_of(store.restore_checkpoint(SHARD))
        while True:
            step += 1
            for key in ("last", f"k{step % 50}"):
                subject.put(store, key, step)
            wait(store.start_commit(SHARD, reading(step), ()))
            print(step, flush=True)


if __name__ == "__main__":
    main()
