"""`AggregateStore` beyond the suite: what it computes, where its log may end, and what it does with wrong input."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest

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
from broadsheet.consumer.stores.aggregate.aggregates import SlotIndex
from broadsheet.journals.content.csv import CsvType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.runtime.errors import ValidationError
from broadsheet.testing.stores.recorded_log import RecordedChange, RecordedLog
from broadsheet.testing.stores.subject import FixedShard, offset_of, reading, wait
from tests.support.message_batches import WrittenJournal, ack, cont

OpenStore = Callable[..., AggregateStore]


def sums() -> Aggregates:
    """Return the aggregates of most tests."""
    return Aggregates(key="k", n=Count(), total=Sum("v"))


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Opens what a log replays to; destroys it in the end."""
    opened: list[AggregateStore] = []

    def open_one(
        log: RecordedLog | None = None, aggregates: Aggregates | None = None, **options: Any
    ) -> AggregateStore:
        log = log or RecordedLog()
        directory = tmp_path / str(len(opened))
        shard = FixedShard(local_state=LocalState(directory, log.hand_over(directory)))
        store = AggregateStore(shard, aggregates or sums(), **options)
        opened.append(store)
        store.restore_checkpoint(shard)
        return store

    yield open_one
    for store in opened:
        store.destroy()


def commit(store: AggregateStore, step: int) -> None:
    """Commit what the store has."""
    wait(store.start_commit(FixedShard(), reading(step), ()))


def results(store: AggregateStore) -> dict[Any, dict[str, Any]]:
    """Return all that is committed, by key."""
    return {row.pop("k"): row for row in store.to_arrow().to_pylist()}


# -- what it computes


def test_results_are_those_of_a_plain_loop_over_all_rows(open_store: OpenStore) -> None:
    """Whatever the runs are cut into, with nulls, dropped keys and restarts in between."""
    log, seed = RecordedLog(), random.Random(7)
    aggregates = Aggregates(
        key={"k": "string", "day": "date32"},
        n=Count(),
        there=Count("v"),
        total=Sum("v"),
        spent=Sum("m", pa.decimal128(38, 2)),
        ratio=Sum("x", "float64"),
        least=Min("v"),
        most=Max("x", "float64"),
        first=Min("s", "string"),
        seen=Last("s"),
        when=Max("day", "date32"),
        kinds=Distinct("s"),
        spread=Quantiles("x", (0.0, 1.0)),
    )
    loop = _Loop()
    store = open_store(log, aggregates, snapshot_bytes_min=4000)
    for step in range(1, 41):
        for _ in range(seed.randrange(4)):
            rows = [_row(seed) for _ in range(seed.choice((1, 3, 200)))]
            store.update({name: [row[name] for row in rows] for name in rows[0]})
            loop.update(rows)
        if loop.rows and seed.random() < 0.3:
            dropped = seed.sample(sorted(loop.rows, key=repr), min(3, len(loop.rows)))
            store.drop([*dropped, ("never", date(1999, 1, 1))])
            for key in dropped:
                del loop.rows[key]
        commit(store, step)
        if step % 10 == 0:
            assert _by_key(store) == loop.results()
            store.destroy()
            store = open_store(log, aggregates, snapshot_bytes_min=4000)
            assert _by_key(store) == loop.results()
    assert any(path.startswith("/snapshot-") for path in log.files.paths())
    some = next(iter(loop.results()))
    assert store.get(some) == loop.results()[some]
    assert store.get(("never", date(1999, 1, 1))) is None


def _row(seed: random.Random) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if seed.random() < 0.2 else value

    return {
        "k": f"k{seed.randrange(5)}",
        "day": date(2026, 1, 1) + timedelta(days=seed.randrange(3)),
        "v": maybe(seed.randrange(-(2**40), 2**40)),
        "m": maybe(_money(seed.randrange(10**30))),
        "x": maybe(float(seed.randrange(1000))),
        "s": maybe(f"s{seed.randrange(30)}"),
    }


def _money(cents: int) -> Decimal:
    # Not by arithmetic, which rounds to 28 digits.
    return Decimal(f"{cents // 100}.{cents % 100:02}")


class _Loop:
    """The rows of each key, and what Python makes of them."""

    def __init__(self) -> None:
        self.rows: dict[Any, list[dict[str, Any]]] = {}

    def update(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.rows.setdefault((row["k"], row["day"]), []).append(row)

    def results(self) -> dict[Any, dict[str, Any]]:
        return {key: self._result(rows) for key, rows in self.rows.items()}

    def _result(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        values = {
            name: [row[name] for row in rows if row[name] is not None] for name in ("v", "x", "s")
        }
        money = [int(str(row["m"]).replace(".", "")) for row in rows if row["m"] is not None]
        v, x, s = values["v"], values["x"], values["s"]
        return {
            "n": len(rows),
            "there": len(v),
            "total": sum(v) if v else None,
            "spent": _money(sum(money)) if money else None,
            "ratio": sum(x) if x else None,
            "least": min(v, default=None),
            "most": max(x, default=None),
            "first": min(s, default=None),
            "seen": s[-1] if s else None,
            "when": rows[0]["day"],
            "kinds": len(set(s)),  # Exact, while there are few.
            "spread": [min(x), max(x)] if x else None,
        }


def _by_key(store: AggregateStore) -> dict[Any, dict[str, Any]]:
    return {(row.pop("k"), row.pop("day")): row for row in store.to_arrow().to_pylist()}


@pytest.mark.parametrize("values", [[2**62, 2**62 - 1], [2**53 + 1, -1, 2**53], [-(2**63), 1]])
def test_sum_of_large_integers_is_exact(open_store: OpenStore, values: list[int]) -> None:
    """Floats, through which numpy adds, have 53 bits."""
    store = open_store()
    store.update({"k": ["a"] * len(values), "v": values})
    for value in values:
        store.update({"k": ["b"], "v": [value]})
        store.changes()  # Folds: this key's sum grows row by row.

    assert [row["total"] for row in store.changes().to_pylist()] == [sum(values)] * 2


@pytest.mark.parametrize("together", [True, False])
def test_sum_that_does_not_fit_is_refused_and_ends_the_store(
    open_store: OpenStore, together: bool
) -> None:
    """A sum that wraps would be wrong for ever; and what half a run did must not be committed."""
    store = open_store()
    with pytest.raises(ValidationError, match=r"total: .*larger type"):
        for values in [[2**62, 2**62]] if together else [[2**62], [2**62]]:
            store.update({"k": ["a"] * len(values), "v": values})
            store.changes()

    with pytest.raises(StoreError, match="open a new store"):
        store.start_commit(FixedShard(), reading(1), ())


def test_sketches_are_close_survive_and_merge(open_store: OpenStore) -> None:
    """Within their stated errors; and two keys' sketches, as a scan shows them, make one of both."""
    log = RecordedLog()
    aggregates = Aggregates(key="k", users=Distinct("u", "int64"), ms=Quantiles("x", (0.5,)))
    store = open_store(log, aggregates)
    for half in range(2):
        users = np.arange(half * 10_000, half * 10_000 + 20_000)
        store.update({"k": ["ab"[half]] * 20_000, "u": users, "x": users / 10})
        commit(store, half + 1)
    store.destroy()

    store = open_store(log, aggregates)
    assert store.get("a") == {
        "users": pytest.approx(20_000, rel=0.05),
        "ms": pytest.approx(1000, rel=0.05),
    }
    union = datasketches.hll_union(12)
    with store.scan("sketches", ["users"]) as scan:
        for batch in scan.batches:
            for content in batch.column("users").to_pylist():
                union.update(datasketches.hll_sketch.deserialize(content))
    assert union.get_estimate() == pytest.approx(30_000, rel=0.05)


def test_sketch_that_did_not_change_is_not_recorded_again(open_store: OpenStore) -> None:
    """Values that were there before are the common case, and a sketch has some KB."""
    log = RecordedLog()
    store = open_store(log, Aggregates(key="k", n=Count(), users=Distinct("u", "int64")))

    def recorded(step: int) -> int:
        before = log.files.size_bytes()
        store.update({"k": ["a"] * 10_000, "u": np.arange(10_000)})
        commit(store, step)
        return log.files.size_bytes() - before

    assert recorded(1) > 2000
    assert recorded(2) < 1200
    assert results(store)["a"]["n"] == 20_000


@pytest.mark.parametrize(
    "rows",
    [
        {"k": ["a", "b", "a"], "v": [1, 2, 3]},
        {"k": np.array(["a", "b", "a"]), "v": np.array([1, 2, 3], np.int16)},
        {"k": pa.chunked_array([["a"], ["b", "a"]]), "v": pa.chunked_array([[1, 2], [3]])},
        {"k": pa.array(["a", "b", "a"]).dictionary_encode(), "v": pa.array([1, 2, 3], pa.uint8())},
        pa.table(
            {"v": [1, 2, 3], "other": [0, 0, 0], "k": pa.array(["a", "b", "a"], pa.large_string())}
        ),
        pa.RecordBatch.from_pydict({"k": ["a", "b", "a"], "v": [1.0, 2.0, 3.0]}),
        pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]}).to_pandas(),
    ],
    ids=["lists", "numpy", "chunks", "dictionary", "table", "batch", "pandas"],
)
def test_run_may_be_whatever_has_columns(open_store: OpenStore, rows: Any) -> None:
    """Of every kind that data engineers hold; numbers of other widths fit without being told."""
    store = open_store()
    store.update(rows)
    commit(store, 1)

    assert results(store) == {"a": {"n": 2, "total": 4}, "b": {"n": 1, "total": 2}}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({"k": ["a"]}, "v: expected a column of this name among k"),
        ({"k": ["a"], "v": ["1"]}, "v: expected int64"),
        ({"k": ["a"], "v": pa.array(["1"])}, "v: expected int64, as it is declared; got string"),
        ({"k": ["a"], "v": np.array([0.5])}, "v: expected int64"),
        ({"k": [1], "v": [1]}, "k: expected string"),
        ({"k": ["a", None], "v": [1, 1]}, "k: expected a key in every row, got null in 1 of 2"),
        ({"k": ["a", "b"], "v": [1]}, "rows: expected columns of one length"),
    ],
)
def test_run_that_does_not_fit_is_refused_and_changes_nothing(
    open_store: OpenStore, rows: Any, told: str
) -> None:
    """The error names the field, and what was expected; the application may go on."""
    store = open_store()
    with pytest.raises(ValidationError) as refused:
        store.update(rows)

    assert str(refused.value).startswith(told)
    store.update({"k": ["a"], "v": [1]})
    commit(store, 1)
    assert results(store) == {"a": {"n": 1, "total": 1}}


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: Aggregates(key="k"), "expected a key of at least one field, and an aggregate"),
        (lambda: Aggregates(key={"k": "float64"}, n=Count()), "key.k: expected text"),
        (lambda: Aggregates(key="k", s=Sum("v", "int")), "s.type: expected a type of Arrow's"),
        (lambda: Aggregates(key="k", s=Sum("v", "string")), "s.type: expected int64"),
        (lambda: Aggregates(key="k", k=Count()), "k: expected a name that is not the key's"),
        (lambda: Aggregates(key="k", d=Distinct("v", precision=30)), "d.precision: expected"),
        (lambda: Aggregates(key="k", q=Quantiles("v", (50,))), "q.fractions: expected"),
        (lambda: Aggregates(key="k", q=sum), "q: expected an aggregate"),  # type: ignore[arg-type]
    ],
)
def test_declaration_that_cannot_be_kept_is_refused(
    declare: Callable[[], Aggregates], told: str
) -> None:
    """When the application is made, not at its first message."""
    with pytest.raises(ValidationError) as refused:
        declare()

    assert str(refused.value).startswith(told)


def test_run_of_messages_is_read_without_acknowledgements(open_store: OpenStore) -> None:
    """Those have no key; and a field that no message of a run has is null, as it is in one that some have."""
    messages = [b'{"k": "a"}', b"{}", b'{"k": "b"}', b'{"k": "a"}']
    batch = WrittenJournal().batch(
        *(
            ack(clock) if text == b"{}" else cont(clock, payload=text)
            for clock, text in enumerate(messages, 1)
        )
    )
    store = open_store()
    store.update(batch)
    store.update(batch.span(1, 2))
    commit(store, 1)

    assert results(store) == {"a": {"n": 2, "total": None}, "b": {"n": 1, "total": None}}


def test_columns_of_csv_have_the_declared_types(open_store: OpenStore) -> None:
    """Records have text without names: the aggregates say what is a number, and which field by `f` and its place."""
    payloads = (b"x,a,1", b"x,b,2", b"x,a,3")
    batch = MessageBatch(
        "in/a", [0, 5, 10], [5, 10, 15], [0] * 3, [0] * 3, [0] * 3, payloads, CsvType(columns=2)
    )
    aggregates = Aggregates(key="f1", n=Count("uuid"), total=Sum("f2"))
    store = open_store(aggregates=aggregates)
    store.update(batch)

    assert store.changes().to_pylist() == [
        {"f1": "a", "n": 2, "total": 4},
        {"f1": "b", "n": 1, "total": 2},
    ]


def test_little_is_held_back_however_wide_rows_are(open_store: OpenStore) -> None:
    """A column may be a view of a message of which nothing else is needed."""
    store = open_store()
    wide = pa.table({"k": ["a"] * 100, "v": [1] * 100, "text": ["x" * 50_000] * 100})
    before = pa.total_allocated_bytes()
    for _ in range(20):
        message = pa.BufferOutputStream()
        with pa.ipc.new_stream(message, wide.schema) as stream:
            stream.write_table(wide)
        store.update(pa.ipc.open_stream(message.getvalue()).read_all())
        del message, stream

    assert pa.total_allocated_bytes() - before < 3 * wide.nbytes
    commit(store, 1)
    assert results(store) == {"a": {"n": 2000, "total": 2000}}


# -- another declaration over the same log


def test_aggregates_are_added_and_removed_between_lives(open_store: OpenStore) -> None:
    """What is new begins with the rows that come; what is gone is dropped; the rest goes on."""
    log = RecordedLog()
    store = open_store(log)
    store.update({"k": ["a", "b"], "v": [1, 2]})
    commit(store, 1)
    store.destroy()

    for _ in range(2):
        store = open_store(log, Aggregates(key="k", n=Count(), most=Max("v")))
        store.update({"k": ["a"], "v": [5]})
        commit(store, 2)
        store.destroy()

    store = open_store(log, Aggregates(key="k", n=Count(), most=Max("v")))
    assert results(store) == {"a": {"n": 3, "most": 5}, "b": {"n": 1, "most": None}}


@pytest.mark.parametrize(
    ("aggregates", "told"),
    [
        (Aggregates(key="k", n=Count(), total=Sum("v", "float64")), "aggregate total was written"),
        (Aggregates(key={"k": "int64"}, n=Count()), "use another shard"),
    ],
)
def test_aggregate_that_means_something_else_is_refused(
    open_store: OpenStore, aggregates: Aggregates, told: str
) -> None:
    """Numbers of two meanings must not be added."""
    log = RecordedLog()
    store = open_store(log)
    store.update({"k": ["a"], "v": [1]})
    commit(store, 1)
    store.destroy()

    with pytest.raises(StoreError, match=told):
        open_store(log, aggregates)


# -- where a log may end


def test_log_that_ends_at_any_byte_opens_at_a_commit(tmp_path: Path, open_store: OpenStore) -> None:
    """A process dies in the middle of whatever it writes: commits, snapshots, removals, in two lives."""
    log = RecordedLog()
    states: list[dict[Any, dict[str, Any]]] = [{}]
    for _ in range(2):
        store = open_store(log, snapshot_bytes_min=1000)
        for _ in range(3):
            step = len(states)
            store.update({"k": ["a", f"k{step % 3}"], "v": [step, 1]})
            if step % 2 == 0:
                store.drop(["k0"])
            commit(store, step)
            states.append(results(store))
        store.destroy()
    assert sum(change.kind == "rename" for change in log.changes) >= 2

    for count, directory in _every_end(log, tmp_path / "ends"):
        step, state = _opened(directory)
        assert state == states[step], f"cut in change {count}"
        assert step >= sum(barrier <= count for barrier in log.barriers), f"change {count} lost one"


def _opened(directory: Path) -> tuple[int, dict[Any, dict[str, Any]]]:
    """Return the last commit and its state; without one, those of a new shard."""
    copy = AggregateStore(FixedShard(local_state=LocalState(directory)), sums())
    with suppress(StoreError):  # There is no commit yet.
        copy.open_copy()
        with copy.scan("aggregates") as scan:
            return offset_of(scan.checkpoint), results(copy)
    return 0, {}


def _every_end(log: RecordedLog, directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield (number of complete changes, directory as replayed) for bytes at which the log may end.

    Those at which a frame begins and ends, and some of the many in between, which are all alike to its checksum.
    """
    directory.mkdir()
    for count, change in enumerate(log.changes):
        path = directory / change.path[1:]
        if change.kind == "write":
            with path.open("r+b") as file:
                length = len(change.content)
                ends = sorted({*range(14), *range(14, length, 17), length - 1, length})
                for begin, end in pairwise(ends):
                    yield count, directory
                    file.seek(change.offset + begin)
                    file.write(change.content[begin:end])
                    file.flush()
        else:
            yield count, directory
            _perform(change, path, directory)
    yield len(log.changes), directory


def _perform(change: RecordedChange, path: Path, directory: Path) -> None:
    match change.kind:
        case "create":
            path.touch(exist_ok=False)
        case "rename":
            path.replace(directory / change.to[1:])
        case "remove":
            path.unlink()


def test_log_stays_bounded_however_long_a_store_lives(open_store: OpenStore) -> None:
    """Else a standby plays, and a broker keeps, every commit there ever was."""
    log = RecordedLog()
    for _ in range(3):
        store = open_store(log, snapshot_bytes_min=4000)
        for step in range(60):
            store.update({"k": [f"k{each}" for each in range(20)], "v": [step] * 20})
            commit(store, step)
        store.destroy()

    assert sum(len(change.content) for change in log.changes) > 100_000
    assert log.files.size_bytes() < 10_000
    assert len(log.files.paths()) <= 3


def test_many_short_lives_leave_few_files(open_store: OpenStore) -> None:
    """Each life begins a file; a shard that moves often must not keep an old snapshot for ever."""
    log = RecordedLog()
    for step in range(1, 71):
        store = open_store(log)
        store.update({"k": ["a"], "v": [1]})
        commit(store, step)
        store.destroy()

    assert len(log.files.paths()) < 20
    assert results(open_store(log)) == {"a": {"n": 70, "total": 70}}


@pytest.mark.parametrize("damage", ["flipped byte", "missing file"])
def test_damage_is_found_and_never_passed_over(open_store: OpenStore, damage: str) -> None:
    """A commit that is missing in the middle would be a wrong state for ever."""
    log = RecordedLog()
    for step in (1, 2):
        store = open_store(log)
        for each in range(2):
            store.update({"k": ["a"], "v": [1]})
            commit(store, 2 * step + each)
        store.destroy()
    first = min(path for path in log.files.paths() if path.startswith("/changes-"))
    if damage == "flipped byte":
        content = bytearray(log.files.content_of(first))
        content[200] ^= 1
        log.files.apply(RecordedChange("write", first, 0, bytes(content)))
    else:
        log.files.apply(RecordedChange("remove", first))

    with pytest.raises(StoreError, match="is damaged"):
        open_store(log)


# -- transactions


def test_changes_are_those_of_the_running_transaction(open_store: OpenStore) -> None:
    """What an application publishes in `finalize_txn`: new results of changed keys, no others."""
    store = open_store()
    store.update({"k": ["a", "b"], "v": [1, 2]})
    commit(store, 1)

    store.update({"k": ["b", "c"], "v": [3, 4]})
    store.drop(["c", "a"])

    assert store.changes().to_pylist() == [{"k": "b", "n": 2, "total": 5}]
    assert results(store) == {"a": {"n": 1, "total": 1}, "b": {"n": 1, "total": 2}}
    commit(store, 2)
    assert store.changes().num_rows == 0
    assert results(store) == {"b": {"n": 2, "total": 5}}


def test_slot_of_a_released_key_is_the_next_ones() -> None:
    """A key that has the day in it comes and goes: memory must not grow with every day."""
    index = SlotIndex()
    slots = []
    for step in range(300):
        slots += index.slots_of([f"day {step}"]).tolist()
        if step:
            index.release(f"day {step - 1}")

    assert set(slots) == {0, 1}


def test_dropped_keys_are_gone_and_others_stay(open_store: OpenStore) -> None:
    """A key that has the day in it comes and goes: memory must not grow with every day."""
    store = open_store()
    for step in range(1, 300):
        store.update({"k": [f"day {step}"], "v": [step]})
        store.drop([f"day {step - 2}"])
        commit(store, step)

    assert sorted(results(store)) == ["day 298", "day 299"]
    assert store.get("day 297") is None
    assert store.get("day 299") == {"n": 1, "total": 299}
