"""State that a shard begins with: what is loaded, when it is refused, and lives that end while it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from broadsheet.consumer.errors import ApplicationError, StoreError
from broadsheet.consumer.keyed import (
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    StateImport,
    StateOptions,
    TxnTime,
)
from broadsheet.consumer.keyed.application import EventTime
from broadsheet.consumer.keyed.imports import files as import_files
from broadsheet.consumer.keyed.imports.manifest import MANIFEST, ImportManifest
from broadsheet.consumer.keyed.imports.mark import (
    ImportMark,
    ImportPhase,
    ImportRefusedError,
    ImportStep,
    next_step,
)
from broadsheet.journals import NDJSON, MappedJournal
from broadsheet.journals.message.partitioning import KeyColumn
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.import_runs import Content, ImportingLives, SourcedShard, write_import
from tests.support.keyed_runs import SteppedClock

COUNT = pa.schema([("n", pa.int64())])
TAG = pa.schema([("tag", pa.string())])
JOURNALS = KeyColumn("user", lambda: (MappedJournal("clicks/0", NDJSON),))


class Seen(KeyedProcessor):
    """Emits all that it has of a key."""

    def init(self, state: StateHandle) -> None:
        """Declare one variable of each kind."""
        self.count = state.value("count", COUNT)
        self.tags = state.list("tags", TAG, ttl_ms=1_000)
        self.seen = state.map("seen", "page string", COUNT)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Emit."""
        yield (*key, *self._all(), time.watermark_ms)

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Emit, too."""
        yield (*key, expiry_ms, time.watermark_ms)

    def _all(self) -> list[Any]:
        return [self.count.get(), list(self.tags.get()), dict(self.seen.items()), list(self.timers)]


def application(place: Path | None, **parts: Any) -> KeyedApplication:
    """Return one that begins with an import."""
    imported = None
    if place is not None:
        shard = parts.pop("shard", "")
        journals = None if shard else JOURNALS
        imported = StateImport(place=str(place), journals=journals, shard=shard)
    described: dict[str, Any] = {
        "key": "user string",
        "rows": "user string, at timestamp",
        "time": "event",
        "event_time": EventTime(column="at", delay_ms=5, max_future_ms=1 << 60),
        "clock": SteppedClock(),
        "state": StateOptions(index="memory"),
        **parts,
    }
    return KeyedApplication(described.pop("processor", Seen), imported=imported, **described)


def contents() -> list[Content]:
    """Return some of each kind; one list is longer than a chunk of the store."""
    long = [("b", None, {"tag": f"{each:>900}"}, 5_000 + each) for each in range(12)]
    short = [("a", None, {"tag": "x"}, 900), ("a", None, {"tag": "y"}, 2_000)]
    return [
        Content(
            "count", "ValueState", COUNT, [(k, None, {"n": n}, None) for n, k in enumerate("abc")]
        ),
        Content("tags", "ListState", TAG, [*short, *long]),
        Content(
            "seen",
            "MapState",
            COUNT,
            [("a", {"page": p}, {"n": 1}, None) for p in "qp"],
            pa.schema([("page", pa.string())]),
        ),
        Content(
            "",
            None,
            pa.schema([]),
            [("a", None, None, 40), ("c", None, None, 60), ("a", None, None, 80)],
        ),
    ]


TIMES = {"time_mode": "event", "batch_ms": 1_500, "late_ms": 30, "watermark_ms": 50}


@pytest.fixture
def ends() -> Iterator[list[ImportingLives]]:
    """Lives that end with the test."""
    lives: list[ImportingLives] = []
    yield lives
    for each in lives:
        each.end()


def lives_of(
    tmp_path: Path, ends: list[ImportingLives], *args: Any, **parts: Any
) -> ImportingLives:
    """Return the lives of a shard in a directory of their own."""
    lives = ImportingLives(tmp_path / f"lives-{len(ends)}", application(*args, **parts))
    ends.append(lives)
    return lives


def test_import_is_what_the_processor_finds(tmp_path: Path, ends: list[ImportingLives]) -> None:
    """Values, lists in order, maps, timers, TTLs and watermarks: the shard goes on where the other system ended."""
    write_import(tmp_path / "import", {"clicks/0": contents()}, **TIMES)
    lives = lives_of(tmp_path, ends, tmp_path / "import")

    # Batch times go on from the import's: what expired by then is not seen.
    assert lives.state("count", "b") == (1,)
    assert lives.state("seen", "a") == {("p",): (1,), ("q",): (1,)}
    # The watermark that the other system had for its next batch is in force in the first transaction, without a row.
    assert lives.run.next_txn_after() == 0.0
    assert lives.transact() == [("a", 40, 50)]
    lives.clock.now_ms = 1_600
    at = [1 << 40] * 2
    a, b = lives.transact([("a", *_times(at[:1])), ("b", *_times(at[:1]))])
    assert a[1:5] == ((0,), [("y",)], {("p",): (1,), ("q",): (1,)}, [80])
    assert [int(tag) for (tag,) in b[2]] == list(range(12))
    # After a restart it is the shard's own state, and the place is not looked at.
    (tmp_path / "import" / MANIFEST).unlink()
    lives.reopen()
    assert lives.state("count", "c") == (2,)


def _times(milliseconds: list[int]) -> list[Any]:
    times: list[Any] = pa.array(milliseconds, pa.timestamp("ms", "UTC")).to_pylist()
    return times


def test_rows_at_the_watermark_of_the_last_batch_are_late(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """Rows are judged one batch behind, so those between the two watermarks that were taken over are still handled."""
    write_import(tmp_path / "import", {"clicks/0": contents()[:1]}, **TIMES)
    lives = lives_of(tmp_path, ends, tmp_path / "import")

    (row,) = lives.transact([("a", *_times([30])), ("b", *_times([31]))])
    assert row[0] == "b"


def test_life_that_ends_anywhere_in_an_import_is_gone_on_from(
    tmp_path: Path, ends: list[ImportingLives], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is cut off after each operation, also in the middle of one: nothing is loaded twice, or left out."""
    monkeypatch.setattr(import_files, "BATCH_ROWS_MAX", 2)
    write_import(tmp_path / "import", {"clicks/0": contents()}, **TIMES)
    lives = lives_of(tmp_path, ends, tmp_path / "import")
    expected, log = _all_state(lives), lives.log
    assert expected["count"]["c"] == (2,)
    tried = 0
    for _, files in log.cuts():
        lives.reopen_at(files)
        assert _all_state(lives) == expected
        tried += 1
    assert tried > 20


def _all_state(lives: ImportingLives) -> dict[str, Any]:
    names = ("count", "tags", "seen")
    found: dict[str, Any] = {name: {key: lives.state(name, key) for key in "abc"} for name in names}
    return found | {"timers": [lives.store.expiries(_key(lives, key)) for key in "abc"]}


def _key(lives: ImportingLives, key: str) -> bytes:
    return lives.application.settings.key.encode((key,))


def test_half_of_an_import_is_not_shown_and_does_not_start_by_itself(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """Its files went in the middle: neither a life without the import nor a standby may take half a state for all."""
    manifest = write_import(tmp_path / "import", {"clicks/0": contents()}, **TIMES)
    (tmp_path / "import" / manifest.files[1].path).unlink()
    lives = lives_of(tmp_path, ends, None)
    lives.end()
    lives.application.imported = StateImport(place=str(tmp_path / "import"), journals=JOURNALS)
    with pytest.raises(StoreError, match=r"cannot read .*arrow"):
        lives.reopen()
    copy: Any = lives.subject.open_copy(lives.shard)
    with pytest.raises(StoreError, match="is not complete yet"):
        copy.open_copy()
    copy.destroy()
    lives.application.imported = None
    with pytest.raises(StoreError, match="is not complete: start it with this import"):
        lives.reopen()


def test_other_import_takes_the_place_of_half_of_one(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """Nothing of the first one stays, not even a timer or an expiry, although half of it was committed."""
    manifest = write_import(tmp_path / "one", {"clicks/0": contents()}, **TIMES)
    (tmp_path / "one" / manifest.files[0].path).unlink()
    write_import(tmp_path / "two", {"clicks/0": contents()[:1]}, **TIMES)
    lives = lives_of(tmp_path, ends, None)
    lives.application.imported = StateImport(place=str(tmp_path / "one"), journals=JOURNALS)
    with pytest.raises(StoreError):
        lives.reopen()
    lives.application.imported = StateImport(place=str(tmp_path / "two"), journals=JOURNALS)
    lives.reopen()
    assert lives.state("count", "a") == (0,)
    assert lives.state("tags", "b") == []
    assert lives.store.next_timer_ms() is None
    assert lives.store.first_filed_ms() is None


def test_import_into_state_is_refused_unless_it_is_asked_for(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """A second import would undo what the shard did since: it is done on demand alone, and then once."""
    write_import(tmp_path / "one", {"clicks/0": contents()}, **TIMES)
    write_import(tmp_path / "two", {"clicks/0": contents()[:1]}, id="2", **TIMES)
    lives = lives_of(tmp_path, ends, tmp_path / "one")
    lives.transact()
    second = StateImport(place=str(tmp_path / "two"), journals=JOURNALS)
    lives.application.imported = second
    with pytest.raises(
        StoreError, match=r"has the state of another import, .*/one: .*replaces=True"
    ):
        lives.reopen()
    lives.application.imported = StateImport(place=second.place, journals=JOURNALS, replaces=True)
    lives.reopen()
    assert lives.state("tags", "b") == []
    lives.transact([("a", *_times([1 << 40]))])
    lives.reopen()
    assert lives.store.meta(b"times") is not None

    own = lives_of(tmp_path, ends, None)
    own.transact([("a", *_times([1 << 40]))])
    own.application.imported = second
    with pytest.raises(StoreError, match="has state of its own"):
        own.reopen()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rows": 4}, "has 3 rows, and its manifest says 4"),
        ({"rows": 2}, "has 3 rows, and its manifest says 2"),
        ({"variable": "tags"}, "tags.tag: Expected"),
        ({"variable": "seen"}, "expected a variable among count, tags"),
        ({"variable": ""}, "lacks the column expiry_ms"),
    ],
)
def test_import_whose_counts_differ_refuses_to_start(
    tmp_path: Path, ends: list[ImportingLives], change: dict[str, Any], error: str
) -> None:
    """Counts of files, and of what is in the state afterwards, are compared: state that is not whole is never used."""
    manifest = write_import(tmp_path / "import", {"clicks/0": contents()[:2]}, **TIMES)
    files = [msgspec.structs.replace(manifest.files[0], **change), *manifest.files[1:]]
    changed = msgspec.structs.replace(manifest, files=files)
    (tmp_path / "import" / MANIFEST).write_bytes(changed.encode())
    lives = lives_of(tmp_path, ends, None)
    lives.application.imported = StateImport(place=str(tmp_path / "import"), journals=JOURNALS)
    for _ in range(2):
        with pytest.raises(StoreError, match=error):
            lives.reopen()


def test_read_back_that_differs_from_the_manifest_refuses_to_start(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """The same key twice in a file is one value in the state: the other system's state was not what it should be."""
    twice = Content("count", "ValueState", COUNT, [("a", None, {"n": 1}, None)] * 2)
    write_import(tmp_path / "import", {"clicks/0": [twice]}, **TIMES)
    lives = lives_of(tmp_path, ends, None)
    lives.application.imported = StateImport(place=str(tmp_path / "import"), journals=JOURNALS)
    for _ in range(2):
        with pytest.raises(StoreError, match="variable count: the import has 2, and 1 are in the"):
            lives.reopen()


def test_shard_takes_the_keys_and_positions_of_its_own_journals(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """Each shard has its keys alone, and goes on where the other system had read its journals to."""
    counts = contents()[0]
    position = Checkpoint.Source(read_through=123)
    positions = {f"clicks/{each}": position.SerializeToString() for each in range(3)}
    owners = {
        f"clicks/{each}": [Content("count", counts.kind, COUNT, [row])]
        for each, row in enumerate(counts.rows)
    }
    write_import(tmp_path / "import", owners, positions=positions, **TIMES)
    shard = SourcedShard(sources=("clicks/1", "clicks/2"))
    lives = ImportingLives(tmp_path / "lives", application(tmp_path / "import"), shard)
    ends.append(lives)
    assert [lives.state("count", key) for key in "abc"] == [None, (1,), (2,)]
    checkpoint = lives.store.restore_checkpoint(lives.shard)
    assert {name: each.read_through for name, each in checkpoint.sources.items()} == {
        "clicks/1": 123,
        "clicks/2": 123,
    }


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"shard": "shard-0002"}, "all keys of the import are of shard shard-0002"),
        ({"time_mode": "processing"}, "time: expected 'processing', as the import has it"),
        ({"key": bytes}, "key: expected user string, as the application groups by, the import has"),
    ],
)
def test_import_that_is_another_applications_is_refused(
    tmp_path: Path, ends: list[ImportingLives], parts: dict[str, Any], error: str
) -> None:
    """Before a row is loaded."""
    if "key" in parts:
        parts = {"key": pa.schema([("user", pa.int64())]).serialize().to_pybytes()}
    manifest = write_import(tmp_path / "import", {"": contents()}, **TIMES)
    changed = msgspec.structs.replace(manifest, **parts)
    (tmp_path / "import" / MANIFEST).write_bytes(changed.encode())
    with pytest.raises(StoreError, match=error):
        lives_of(tmp_path, ends, tmp_path / "import", shard="shard-0001")


def test_shard_that_owns_a_range_of_keys_refuses_an_import(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """Each shard of a family reads the same journals, so each would load the keys of all."""
    write_import(tmp_path / "import", {"clicks/0": contents()}, **TIMES)
    shard = SourcedShard(keys=("0000", "0800"))
    with pytest.raises(StoreError, match="it owns the keys 0000-0800 alone"):
        ImportingLives(tmp_path / "lives", application(tmp_path / "import"), shard)


def test_application_names_the_owner_of_keys_or_is_refused() -> None:
    """Without it each shard would take all keys."""
    with pytest.raises(ValidationError, match="journals: expected either journals, or the id"):
        StateImport(place="/imports/1")
    with pytest.raises(ValidationError, match="place: expected a path or a URI"):
        StateImport(place="", shard="shard-0001")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"min_reader": 2}'])
def test_place_without_a_manifest_is_no_empty_state(
    tmp_path: Path, ends: list[ImportingLives], content: bytes
) -> None:
    """A place that is not there, or damaged, never means that there is nothing to begin with."""
    lives = lives_of(tmp_path, ends, None)
    lives.application.imported = StateImport(place=str(tmp_path / "none"), journals=JOURNALS)
    with pytest.raises(StoreError, match=r"there is no complete import in .*keyed import first"):
        lives.reopen()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / MANIFEST).write_bytes(content)
    with pytest.raises(StoreError, match="is no manifest"):
        lives.reopen()


def test_imported_state_follows_the_rules_of_schema_evolution(
    tmp_path: Path, ends: list[ImportingLives]
) -> None:
    """The processor may declare more fields, and wider ones; what it cannot read is refused with variable and field."""

    class Wider(Seen):
        def init(self, state: StateHandle) -> None:
            self.count = state.value("count", "more string, n double")

    class Narrower(Seen):
        def init(self, state: StateHandle) -> None:
            self.count = state.value("count", "n int")

    write_import(tmp_path / "import", {"clicks/0": contents()}, **TIMES)
    lives = lives_of(tmp_path, ends, tmp_path / "import", processor=Wider)
    assert lives.state("count", "c") == (None, 2.0)
    with pytest.raises(ApplicationError, match=r"count.n: expected int64 as it is stored"):
        lives_of(tmp_path, ends, tmp_path / "import", processor=Narrower)


def test_decision_of_a_start_is_a_table() -> None:
    """Pure: each combination of a mark, an application's import and state leads to one step, or to a refusal."""
    done = ImportMark("p", "1", ImportPhase.DONE)
    loading, clearing = (
        ImportMark("p", "1", each) for each in (ImportPhase.LOADING, ImportPhase.CLEARING)
    )

    def step(mark: ImportMark | None, place: str | None, state: bool, replaces: bool) -> Any:
        try:
            return next_step(mark, place, has_state=state, replaces=replaces)
        except ImportRefusedError:
            return None

    assert step(None, None, False, False) is ImportStep.NOTHING
    assert step(None, None, True, False) is ImportStep.NOTHING
    assert step(None, "p", False, False) is ImportStep.LOAD
    assert step(None, "p", True, False) is None
    assert step(None, "p", True, True) is ImportStep.CLEAR
    for replaces in (False, True):
        assert step(done, "p", True, replaces) is ImportStep.NOTHING
        assert step(loading, "p", True, replaces) is ImportStep.LOAD
        assert step(loading, "q", True, replaces) is ImportStep.CLEAR
        assert step(clearing, "p", True, replaces) is ImportStep.CLEAR
        assert step(loading, None, True, replaces) is None
        assert step(done, None, True, replaces) is ImportStep.NOTHING
    assert step(done, "q", True, False) is None
    assert step(done, "q", True, True) is ImportStep.CLEAR


def test_manifest_counts_rows_by_owner() -> None:
    """A shard compares with its own part, and timers count too."""
    manifest = ImportManifest(id="1", origin="", key=b"", variables=[], files=[])
    assert manifest.counts_of(["a"]) == {"": 0}
