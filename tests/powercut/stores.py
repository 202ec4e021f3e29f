"""Stores that keep their state in a directory: the program that commits, and what each disk must hold.

A disk opens; its checkpoint is not behind one that was acknowledged, or that a life restored, because outputs went out
on the strength of it; and the state is that of the checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from broadsheet.consumer.errors import StoreError
from broadsheet.testing.stores.subject import FixedShard, StoreSubject, offset_of, reading, wait
from tests.support.store_subjects import (
    AggregateSubject,
    JsonSubject,
    KeyedSubject,
    RocksDbSubject,
    SqliteSubject,
    SqlSubject,
)

SHARD: Final = FixedShard(root="/powercut")
KEYS: Final = 50
COMMITS_MAX: Final = 24
_IO_ERROR: Final = re.compile("(Input/output|disk I/O|IO) error")
_SAID: Final = re.compile(r"(restored|begins|committed) \d+")
KINDS: Final = ("json_file", "sql", "sqlite", "rocksdb", "aggregate", "keyed")


@contextmanager
def subject_of(kind: str, directory: Path) -> Iterator[StoreSubject]:
    """Return a kind of store that keeps its state in a directory without a recovery log."""
    if kind == "sql":
        engine = sa.create_engine(f"sqlite:///{directory}/state.db")
        try:
            yield SqlSubject(engine, "state")
        finally:
            engine.dispose()
        return
    kinds: dict[str, Callable[[Path], StoreSubject]] = {
        "aggregate": AggregateSubject,
        "json_file": JsonSubject,
        "keyed": partial(KeyedSubject, index="rocksdb"),
        "sqlite": SqliteSubject,
        "rocksdb": RocksDbSubject,
    }
    yield kinds[kind](directory)


def main(arguments: Sequence[str]) -> None:
    """Restore a store, and commit: KIND DIRECTORY COMMITS."""
    kind, directory, commits = arguments
    with subject_of(kind, Path(directory)) as subject:
        try:
            _live(subject, int(commits))
        except (StoreError, SQLAlchemyError) as error:
            # A sync was made to fail. The process ends at once, so that nothing is tidied up.
            if _IO_ERROR.search(str(error)):
                os._exit(0)
            raise


def _live(subject: StoreSubject, commits: int) -> None:
    store = subject.open(SHARD)
    step = offset_of(store.restore_checkpoint(SHARD))
    print("restored", step, flush=True)
    for _ in range(commits):
        step += 1
        print("begins", step, flush=True)
        for key in ("last", f"k{step % KEYS}"):
            subject.put(store, key, step)
        wait(store.start_commit(SHARD, reading(step), ()))
        print("committed", step, flush=True)
    store.destroy()


def expected_state(step: int) -> dict[str, int]:
    """Return the state after a number of commits."""
    state = {f"k{each % KEYS}": each for each in range(max(1, step - KEYS + 1), step + 1)}
    return state | ({"last": step} if step else {})


@dataclass(frozen=True, slots=True)
class PowerCutStore:
    """One kind of store."""

    name: str
    module: str = __name__

    def arguments(self, root: Path, random: Random) -> Sequence[str]:
        """Return the arguments of one life."""
        return [self.name, str(root), str(random.randrange(1, COMMITS_MAX))]

    def check(self, image: Path, said: Sequence[str]) -> str:
        """Open it, and compare."""
        # What else is on the standard output is a log's.
        words = [line.split() for line in said if _SAID.fullmatch(line)]
        least = max((int(n) for word, n in words if word in ("restored", "committed")), default=0)
        most = max((int(n) for word, n in words if word == "begins"), default=0)
        with subject_of(self.name, image) as subject:
            store = subject.open(SHARD)
            try:
                step = offset_of(store.restore_checkpoint(SHARD))
                if not least <= step <= max(least, most):
                    return f"the checkpoint is {step}, and {least} was promised (at most {most} was begun)"
                if step and (state := subject.committed(store)) != expected_state(step):
                    return f"the state at {step} is {state}"
            finally:
                store.destroy()
        return ""
