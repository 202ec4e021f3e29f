"""What a transaction sees is what the next life finds, value for value, in each store; or it is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings, strategies as st

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.aggregate import (
    Aggregates,
    AggregateStore,
    Count,
    Distinct,
    Last,
    Max,
    Min,
    Quantiles,
    Sum,
)
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.consumer.stores.rocksdb import RocksDbStore
from broadsheet.consumer.stores.sql import SqlStore
from broadsheet.consumer.stores.sqlite import SqliteStore
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.fixed_shard import FixedShard

SHARD: Final = FixedShard()


@contextmanager
def new_directory() -> Iterator[Path]:
    """Yield a directory of one example."""
    with tempfile.TemporaryDirectory(prefix="round-trip-") as directory:
        yield Path(directory)


def commit(store: Any, checkpoint: Checkpoint | None = None) -> None:
    """Commit, and wait."""
    store.start_commit(SHARD, checkpoint or Checkpoint(), ()).result(20)


# -- aggregates

_MICROSECONDS = st.integers(-(2**53), 2**53)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=4)
_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "string": (pa.string(), _TEXT),
    "large_string": (pa.large_string(), _TEXT),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "bool": (pa.bool_(), st.booleans()),
    "date32": (pa.date32(), st.dates(dt.date(1700, 1, 1))),
    "date64": (pa.date64(), st.dates(dt.date(1700, 1, 1))),
    "timestamp[us]": (pa.timestamp("us"), _MICROSECONDS),
    "timestamp[ms, UTC]": (pa.timestamp("ms", "UTC"), st.integers(-(2**44), 2**44)),
    "timestamp[ns]": (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    "time32[s]": (pa.time32("s"), st.times().map(lambda time: time.replace(microsecond=0))),
    "time64[us]": (pa.time64("us"), st.times()),
    "duration[us]": (pa.duration("us"), st.timedeltas(dt.timedelta(-1000), dt.timedelta(1000))),
    "float64": (pa.float64(), st.floats()),
    "float32": (pa.float32(), st.floats(width=32)),
    "decimal128": (
        pa.decimal128(38, 6),
        st.decimals(-(10**9), 10**9, places=6, allow_nan=False, allow_infinity=False),
    ),
}
_KEY_TYPES = tuple(name for name in _VALUES if not name.startswith(("float", "decimal")))
_COUNTED = tuple(name for name in _VALUES if name not in ("binary", "decimal128"))


@settings(max_examples=30)
@given(data=st.data())
def test_aggregates_of_any_type_come_back(data: st.DataObject) -> None:
    """Keys and values of every type that can be declared, nulls and extremes too, over several commits and lives."""
    key_type, key_values = _VALUES[data.draw(st.sampled_from(_KEY_TYPES))]
    name = data.draw(st.sampled_from(tuple(_VALUES)))
    type_, values = _VALUES[name]
    declared: dict[str, Any] = {"n": Count(), "last": Last("value", type_), "some": Count("value")}
    if not pa.types.is_boolean(type_):
        declared |= {"least": Min("value", type_), "most": Max("value", type_)}
    if name in ("int64", "float64", "decimal128"):
        declared["total"] = Sum("value", type_)
        declared["quantiles"] = Quantiles("number")
    if name in _COUNTED:
        declared["different"] = Distinct("value", type_)
    aggregates = Aggregates(key={"key": key_type}, **declared)
    seen: list[dict[str, Any]] = []
    with new_directory() as directory:
        for _ in range(2):
            rows = data.draw(st.lists(st.tuples(key_values, st.none() | values), max_size=6))
            store = AggregateStore(SHARD, aggregates, LocalState(directory))
            store.restore_checkpoint(SHARD)
            assert _by_key(store.to_arrow()) == _by_key_of(seen)
            try:
                store.update(_table(rows, key_type, type_))
                changed = store.changes().to_pylist()
            except ValidationError:  # a sum that does not fit
                store.destroy()
                return
            seen = _merged(seen, changed)
            commit(store)
            assert _by_key(store.to_arrow()) == _by_key_of(seen)
            store.destroy()
        store = AggregateStore(SHARD, aggregates, LocalState(directory))
        store.restore_checkpoint(SHARD)
        assert _by_key(store.to_arrow()) == _by_key_of(seen)
        store.destroy()


def _table(rows: list[tuple[Any, Any]], key_type: pa.DataType, type_: pa.DataType) -> pa.Table:
    keys, values = [row[0] for row in rows], [row[1] for row in rows]
    numbers = [None if value is None else float(_small(value)) for value in values]
    return pa.table(
        {
            "key": pa.array(keys, key_type),
            "value": pa.array(values, type_),
            "number": pa.array(numbers, pa.float64()),
        }
    )


def _small(value: Any) -> float:
    return float(value) if isinstance(value, int | float | decimal.Decimal) else 0.0


def _merged(seen: list[dict[str, Any]], changed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_key = {repr(row["key"]): row for row in (*seen, *changed)}
    return list(by_key.values())


def _by_key(table: pa.Table) -> dict[str, str]:
    return _by_key_of(table.to_pylist())


def _by_key_of(rows: list[dict[str, Any]]) -> dict[str, str]:
    # By their texts, because a value that is not a number is not equal to itself.
    return {repr(row["key"]): repr(row) for row in rows}


# -- keys and values of RocksDB

_ODD_BYTES = st.sampled_from(("a", 7, 1.5, bytearray(b"x"), memoryview(b"x"), None, b"\x00a"))


@settings(max_examples=25)
@given(
    items=st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=5),
    odd=st.none() | st.tuples(_ODD_BYTES, st.booleans()),
)
def test_items_of_rocksdb_come_back_or_are_refused_by_name(
    items: list[tuple[bytes, bytes]], odd: tuple[Any, bool] | None
) -> None:
    """Whatever bytes; and text, numbers or buffers that may change, which are none."""
    with new_directory() as directory:
        store = RocksDbStore(SHARD, LocalState(directory), families=("mine",))
        store.restore_checkpoint(SHARD)
        try:
            for key, value in items:
                store.put(key, value, family="mine")
            if odd is not None:
                value, is_key = odd
                key, value = (value, b"v") if is_key else (b"key", value)
                store.put(key, value, family="mine")
                items = [*items, (key, value)]
            seen = list(store.items(family="mine"))
            commit(store)
        except (StoreError, ValidationError, TypeError) as error:
            refused: BaseException | None = error
        else:
            refused = None
        store.destroy()
        if refused is not None:
            assert odd is not None
            assert "bytes" in str(refused) or isinstance(refused, TypeError)
            return
        following = RocksDbStore(SHARD, LocalState(directory), families=("mine",))
        following.restore_checkpoint(SHARD)
        found = list(following.items(family="mine"))
        following.destroy()
    wanted: list[tuple[Any, Any]] = list(dict(items).items())
    if odd == (None, False):  # a removal
        wanted.remove((b"key", None))
    assert found == seen == sorted(wanted)


# -- rows of SQL, as the transaction itself reads them

_SQL_VALUES = st.one_of(
    st.none(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(("\ud800", "a\x00b", "7", math.nan, True)),
)


@settings(max_examples=25)
@given(values=st.lists(_SQL_VALUES, max_size=4), uses_runs=st.booleans())
def test_rows_of_sqlite_come_back_or_are_refused(values: list[Any], uses_runs: bool) -> None:
    """Columns of any affinity: what the application sees in its transaction stays, with its SQL type."""
    schema = (
        "CREATE TABLE IF NOT EXISTS t (k INTEGER PRIMARY KEY, n INTEGER, r REAL, t TEXT, b BLOB)"
    )
    query = "SELECT k, n, typeof(n), r, typeof(r), t, typeof(t), b, typeof(b) FROM t ORDER BY k"
    with new_directory() as directory:
        store = SqliteStore(SHARD, LocalState(directory), schema=schema)
        store.restore_checkpoint(SHARD)
        try:
            if uses_runs and values:
                keys = list(range(len(values)))
                store.upsert("t", {"k": keys} | dict.fromkeys("nrtb", values), key="k")
            else:
                for key, value in enumerate(values):
                    store.connection.execute(
                        "INSERT INTO t VALUES (?1, ?2, ?2, ?2, ?2)", (key, value)
                    )
        except (OverflowError, UnicodeEncodeError, sqlite3.Error):
            store.destroy()
            return
        seen = store.connection.execute(query).fetchall()
        commit(store)
        store.destroy()
        following = SqliteStore(SHARD, LocalState(directory), schema=schema)
        following.restore_checkpoint(SHARD)
        assert following.connection.execute(query).fetchall() == seen
        following.destroy()


# -- checkpoints, in every store

_NUMBERS = st.integers(0, 2**63 - 1)
_CHECKPOINTS = st.builds(
    lambda sources, intents: _checkpoint(sources, intents),
    st.dictionaries(
        _TEXT,
        st.tuples(
            st.integers(-1, 2**63 - 1),
            st.lists(
                st.tuples(st.binary(min_size=6, max_size=6), _NUMBERS, st.integers(-1, 2**63 - 1)),
                max_size=3,
                unique_by=lambda producer: producer[0],
            ),
            st.binary(max_size=4),
        ),
        max_size=3,
    ),
    st.dictionaries(_TEXT, st.binary(max_size=8), max_size=2),
)


def _checkpoint(sources: dict[str, Any], intents: dict[str, bytes]) -> Checkpoint:
    checkpoint = Checkpoint()
    for journal, (read_through, producers, resume) in sources.items():
        source = checkpoint.sources[journal]
        source.read_through = read_through
        source.resume = resume
        for producer, last_ack, begin in producers:
            entry = source.producers.add(id=producer)
            entry.state.last_ack = last_ack
            entry.state.begin = begin
    for journal, intent in intents.items():
        checkpoint.ack_intents[journal] = intent
    return checkpoint


def _new_store(kind: str, directory: Path, engine: sa.Engine) -> Any:
    local_state = LocalState(directory / kind)
    match kind:
        case "json":
            return JsonFileStore(SHARD, directory, initial={}, state_type=dict[str, int])
        case "sql":
            return SqlStore(SHARD, engine)
        case "sqlite":
            return SqliteStore(SHARD, local_state)
        case "rocksdb":
            return RocksDbStore(SHARD, local_state)
        case _:
            return AggregateStore(SHARD, Aggregates(key="key", n=Count()), local_state)


@pytest.mark.parametrize("kind", ["json", "sql", "sqlite", "rocksdb", "aggregate"])
@settings(max_examples=8)
@given(checkpoint=_CHECKPOINTS)
def test_checkpoint_comes_back_from_every_store(kind: str, checkpoint: Checkpoint) -> None:
    """Names of journals in any letters, clocks and offsets of 63 bits, offsets -1, and bytes that are no text."""
    with new_directory() as directory:
        engine = sa.create_engine(f"sqlite:///{directory}/states.db")
        store = _new_store(kind, directory, engine)
        store.restore_checkpoint(SHARD)
        commit(store, checkpoint)
        store.destroy()
        following = _new_store(kind, directory, engine)
        assert following.restore_checkpoint(SHARD) == checkpoint
        following.destroy()
        engine.dispose()
