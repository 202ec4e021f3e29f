"""What a query's checkpoint says, without a JVM: its logs, its operator, and what tasks write of its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from broadsheet.consumer.keyed import StateImport
from broadsheet.consumer.keyed.imports.column_values import values_of
from broadsheet.consumer.keyed.imports.files import ImportPlace
from broadsheet.consumer.keyed.imports.manifest import ImportManifest
from broadsheet.journals import NDJSON, MappedJournal
from broadsheet.journals.message.partitioning import KeyColumn, hashes_of, modulo_indices
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.journal_source.journal_state import JournalState, ProducerState
from broadsheet.spark_bridge.journal_source.offsets import StreamOffset
from broadsheet.spark_bridge.keyed import StatefulProcessorApplication
from broadsheet.spark_bridge.keyed.application import modes_of
from broadsheet.spark_bridge.keyed.schemas import arrow_schema, as_nullable_throughout
from broadsheet.spark_bridge.keyed.take_over.export import StateExport, checked_mapping
from broadsheet.spark_bridge.keyed.take_over.operator_state import StoredVariable, operator_of
from broadsheet.spark_bridge.keyed.take_over.query_log import committed_batch, last_committed
from broadsheet.wire.identity_pb2 import JournalEpoch
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.spark_processors import Summed

HEAD = json.dumps({"batchWatermarkMs": 5_000, "batchTimestampMs": 1_700, "conf": {}})
COMMIT = 'v1\n{"nextBatchWatermarkMs":9000}'


def offsets(*sources: str) -> str:
    """Return a file of `offsets`."""
    return "\n".join(["v1", HEAD, *sources])


def test_batch_has_times_and_the_positions_of_journals() -> None:
    """Both watermarks, and of each journal what a checkpoint of a shard has: offset, producers, epoch."""
    state = JournalState(123, {7: ProducerState(50), 9: ProducerState(40, 100, 60)}, 1)
    epoch = JournalEpoch(incarnation=b"\x01" * 16, number=2, nonce=3)
    text = json.dumps(StreamOffset({"clicks/0": state}, epochs={"clicks/0": epoch}).to_json())

    batch = committed_batch(4, offsets(text, "-"), COMMIT)

    assert (batch.batch_ms, batch.late_ms, batch.watermark_ms) == (1_700, 5_000, 9_000)
    assert batch.told == []
    source = Checkpoint.Source.FromString(batch.positions["clicks/0"])
    assert (source.read_through, source.epoch) == (123, epoch)
    producers = [(each.id, each.state.last_ack, each.state.begin) for each in source.producers]
    assert producers == [(b"\0\0\0\0\0\x07", 50, -1), (b"\0\0\0\0\0\x09", 40, 100)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"logOffset":3}', 'source 0: {"logOffset":3}'),
        (
            '{"clicks":{"0":12,"1":7}}',
            "source 0: KafkaSource(…, start=AtOffsets({('clicks', 0): 12, (",
        ),
        ('{"start":{"0":12}}', "source 0: KafkaSource(…, start=AtOffsets({('start', 0): 12})"),
        ("17", "source 0: 17"),
        ("[" * 100_000, "source 0: [[["),
    ],
)
def test_positions_in_other_sources_are_told(text: str, told: str) -> None:
    """Files and rates cannot be gone on from; of Kafka the argument of our source is told."""
    batch = committed_batch(1, offsets(text), COMMIT)
    assert not batch.positions
    assert batch.told[0].startswith(told)


@pytest.mark.parametrize(
    ("given", "commit", "error"),
    [
        ("v2\n{}\n{}", COMMIT, "offsets/1: expected a log of version v1"),
        ("", COMMIT, "offsets/1: expected a log"),
        ("v1\nx", COMMIT, "offsets/1: expected JSON, got 'x'"),
        ("v1\n[]", COMMIT, "offsets/1: expected a JSON object"),
        (offsets(), "v9\n{}", "commits/1: expected a log of version v1"),
        (offsets('{"journals": {}, "min_reader": 99}'), COMMIT, "a later release wrote"),
    ],
)
def test_log_that_is_none_is_refused_with_its_name(given: str, commit: str, error: str) -> None:
    """A position that cannot be read is never left out."""
    with pytest.raises(ValidationError, match=error):
        committed_batch(1, given, commit)


def test_last_committed_batch_is_taken_unless_another_is_asked_for() -> None:
    """A batch that began and did not commit is not part of the state."""
    names = ["0", "9", "10", ".10.crc", "metadata"]
    assert last_committed(names, None) == 10
    assert last_committed(names, 9) == 9
    with pytest.raises(ValidationError, match="batch_id: expected a committed batch from 0 to 10"):
        last_committed(names, 11)
    with pytest.raises(ValidationError, match="checkpoint: expected the checkpoint of a query"):
        last_committed(["metadata"], None)


def properties(**changes: Any) -> str:
    """Return the properties of an operator."""
    variables = [
        {"stateName": "n", "stateVariableType": "ValueState", "ttlEnabled": True},
        {"stateName": "$eventTimers_keyToTimestamp", "stateVariableType": "TimerState"},
    ]
    found = {"timeMode": "EventTime", "outputMode": "Update", "stateVariables": variables}
    return json.dumps({**found, **changes})


PANDAS = "transformWithStateInPandasExec"


def test_operator_is_the_only_one_of_its_kind_or_the_one_asked_for() -> None:
    """A query may have several with state."""
    rows = [(0, "dedupe", ""), (1, PANDAS, properties())]
    operator = operator_of(rows, None)
    assert (operator.id, operator.has_timers) == (1, True)
    assert operator.variables == [StoredVariable("n", "ValueState", True)]
    two = [*rows, (2, "transformWithStateExec", properties(stateVariables=[]))]
    with pytest.raises(ValidationError, match="operator_id: expected one of 1, 2"):
        operator_of(two, None)
    assert operator_of(two, 2).variables == []


@pytest.mark.parametrize(
    ("rows", "wanted", "error"),
    [
        ([], None, "expected a query with state"),
        ([(0, "stateStoreSave", "")], None, "operator 0 is an aggregation: use broadsheet.keyed"),
        ([(0, "flatMapGroupsWithState", "")], None, "is mapGroupsWithState, .* initialState"),
        ([(3, "somethingNew", "")], None, "operator 3 is somethingNew"),
        ([(0, "symmetricHashJoin", ""), (1, PANDAS, properties())], 0, "is a join of streams"),
        ([(1, PANDAS, properties())], 5, r"operator_id: expected one of \[1\], got 5"),
        ([(1, PANDAS, "{}")], None, "operator 1: expected its variables as JSON"),
        (
            [
                (
                    1,
                    PANDAS,
                    properties(stateVariables=[{"stateName": "x", "stateVariableType": "Y"}]),
                )
            ],
            None,
            "variable x: expected a value, list or map, got a Y",
        ),
    ],
)
def test_state_that_cannot_be_taken_over_is_named(
    rows: Any, wanted: int | None, error: str
) -> None:
    """The error says what the operator is, and what to do instead."""
    with pytest.raises(ValidationError, match=error):
        operator_of(rows, wanted)


def test_time_modes_of_checkpoints_are_those_of_applications() -> None:
    """A checkpoint says NoTime for None."""
    assert modes_of("NoTime", "Append") == ("none", {"spark.modes": "none append"})
    assert modes_of("EventTime", "Update")[0] == "event"


# -- what tasks write


FILE = pa.schema(
    [
        ("key", pa.struct([("id", pa.string())])),
        ("value", pa.struct([("n", pa.int64()), ("m", pa.map_(pa.string(), pa.int32()))])),
        ("expiry_ms", pa.int64()),
    ]
)
KEY = pa.schema([("user", pa.string())])
PARTITIONS = [MappedJournal(f"clicks/{each}", NDJSON) for each in range(3)]


def exported(place: Path, batches: list[pa.RecordBatch], **parts: Any) -> list[dict[str, Any]]:
    """Return what a task returns."""
    export = StateExport(
        place=str(place), variable="v", schema=FILE, key=KEY, **{"journals": None, **parts}
    )
    return [row for batch in export(iter(batches)) for row in batch.to_pylist()]


def rows_of(names: list[str]) -> pa.RecordBatch:
    """Return rows as a session with large texts has them; every third has no expiry."""
    key = pa.array([{"id": each} for each in names], pa.struct([("id", pa.large_string())]))
    values = [{"n": at, "m": [("a", at)]} for at in range(len(names))]
    expiries = pa.array([None if at % 3 == 0 else at for at in range(len(names))], pa.int64())
    arrays = [key, pa.array(values, FILE.field("value").type), expiries]
    return pa.RecordBatch.from_arrays(arrays, names=FILE.names)


def test_task_writes_each_key_to_the_journal_that_its_producers_choose(tmp_path: Path) -> None:
    """The order of a journal's rows stays, as lists need it; types are those of the application's state."""
    names = [f"user-{each}" for each in range(100)]
    mapping = KeyColumn("user", lambda: PARTITIONS)
    written = exported(tmp_path, [rows_of(names[:50]), rows_of(names[50:])], journals=mapping)

    assert sum(each["rows"] for each in written) == 100
    chosen = modulo_indices(hashes_of(pa.array(names)), [each.journal for each in PARTITIONS])
    for each in written:
        own = [
            n
            for n, at in zip(names, chosen, strict=True)
            if PARTITIONS[at].journal == each["owner"]
        ]
        file = _file(each)
        found = [
            row for batch in ImportPlace(str(tmp_path)).batches(file) for row in batch.to_pylist()
        ]
        assert [row["key"]["id"] for row in found] == own
        assert {row["expiry_ms"] is None for row in found} == {True, False}
    assert {each["owner"] for each in written} == {each.journal for each in PARTITIONS}


def _file(row: dict[str, Any]) -> Any:
    from broadsheet.consumer.keyed.imports.manifest import ImportedFile

    return ImportedFile(row["path"], row["owner"], "v", row["rows"])


def test_task_that_runs_twice_writes_two_files(tmp_path: Path) -> None:
    """Spark runs tasks again, and two copies of one at a time: none may spoil what another wrote."""
    first, second = (exported(tmp_path, [rows_of(["a", "b"])]) for _ in range(2))
    assert first[0]["path"] != second[0]["path"]
    assert exported(tmp_path, []) == []


def test_mapping_that_needs_more_than_the_key_is_refused_before_rows_are_read() -> None:
    """The state has no other columns by which journals were chosen."""
    with pytest.raises(ValidationError, match=r"journals.column: expected one of \['user'\]"):
        checked_mapping(KeyColumn("country", lambda: PARTITIONS), KEY)
    checked_mapping(KeyColumn("user", lambda: PARTITIONS), KEY)
    checked_mapping(None, KEY)


def test_values_of_columns_have_maps_as_dicts_wherever_they_are() -> None:
    """Arrow gives pairs, and a variable takes a dict."""
    inner = pa.map_(pa.string(), pa.list_(pa.struct([("m", pa.map_(pa.int32(), pa.int32()))])))
    column = pa.array([[("a", [{"m": [(1, 2)]}, None])], None], inner)
    assert values_of(column) == [{"a": [{"m": {1: 2}}, None]}, None]
    assert values_of(pa.array(np.arange(2))) == [0, 1]


def test_types_of_state_may_be_null_throughout() -> None:
    """A checkpoint's reader and the processor may say otherwise of what is in a list: both are one type here."""
    strict = StructType([StructField("n", IntegerType(), nullable=False)])
    declared = StructType(
        [
            StructField("a", ArrayType(strict, containsNull=False)),
            StructField("m", MapType(StringType(), LongType(), valueContainsNull=False)),
        ]
    )
    found = as_nullable_throughout(arrow_schema(declared, "v"))
    assert "not null" not in str(found.field("a").type)
    assert found.field("m").type == pa.map_(pa.string(), pa.int64())


# -- what the application says


def application(**parts: Any) -> StatefulProcessorApplication:
    """Return one of readings."""
    return StatefulProcessorApplication(
        **{
            "processor": Summed(),
            "key": "id",
            "inputSchema": "id string, temperature int",
            "outputStructType": "id string, n string",
            "outputMode": "Update",
            "takeOver": StateImport(place="/imports/1", shard="shard-0001"),
            **parts,
        }
    )


def manifest(**parts: Any) -> ImportManifest:
    """Return the manifest of an import with the sum of each key."""
    from broadsheet.consumer.keyed.imports.manifest import ImportedVariable

    schema = parts.pop("schema", pa.schema([("value", pa.int32())]))
    kind = parts.pop("kind", "ValueState")
    key = parts.pop("key", pa.schema([("id", pa.string())]))
    return ImportManifest(
        id="1",
        origin="",
        key=key.serialize().to_pybytes(),
        variables=[ImportedVariable("sum", kind, schema.serialize().to_pybytes())],
        files=[],
        **{"meta": {"spark.modes": "none update"}, **parts},
    )


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (
            {"schema": pa.schema([("value", pa.int64())])},
            "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION.*sum.value",
        ),
        ({"schema": pa.schema([("total", pa.int32())])}, "sum.value: expected the name total"),
        ({"kind": "ListState"}, "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"),
        ({"key": pa.schema([("id", pa.int32())])}, "key: expected id string"),
        ({"meta": {"spark.modes": "event update"}}, "expected event update, as the query has them"),
        ({"time_mode": "event"}, "time: expected 'event'"),
    ],
)
def test_application_that_cannot_read_the_state_is_refused_before_rows_are_read(
    parts: dict[str, Any], error: str
) -> None:
    """By the same rules as a later version of a processor on its own state."""
    with pytest.raises(ValidationError, match=error):
        application().check_import(manifest(**parts))


@pytest.mark.parametrize("stored", [pa.int8(), pa.int16(), pa.int32()])
def test_application_may_declare_wider_fields(stored: pa.DataType) -> None:
    """A byte, a short or an int of the query is an int of the processor."""
    application().check_import(manifest(schema=pa.schema([("value", stored)])))
