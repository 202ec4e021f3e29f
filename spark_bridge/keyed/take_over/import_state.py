"""Reads the state of a stopped `transformWithState` query, once, and writes it as an import for shards.

logs ─► operator ─► each variable: statestore ─► files, counted on both sides ─► timers ─► logs again ─► manifest
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql.functions import col, count, lit
from pyspark.sql.types import StructType

from broadsheet.consumer.keyed.application import KeyedApplication
from broadsheet.consumer.keyed.imports.files import ImportPlace
from broadsheet.consumer.keyed.imports.loading import StateImport
from broadsheet.consumer.keyed.imports.manifest import (
    EXPIRY,
    KEY,
    USER_KEY,
    VALUE,
    ImportedFile,
    ImportedVariable,
    ImportManifest,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.errors import StateImportError
from broadsheet.spark_bridge.keyed.application import modes_of
from broadsheet.spark_bridge.keyed.schemas import arrow_schema, as_nullable_throughout
from broadsheet.spark_bridge.keyed.take_over.export import WRITTEN, StateExport, checked_mapping
from broadsheet.spark_bridge.keyed.take_over.operator_state import (
    StoredOperator,
    StoredVariable,
    operator_of,
)
from broadsheet.spark_bridge.keyed.take_over.query_log import (
    CommittedBatch,
    committed_batch,
    last_committed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONF: Final = {
    # Batches of rows pass through the memory of a Python worker.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    "spark.sql.session.timeZone": "UTC",
}
_VALUE_COLUMNS: Final = {
    "ValueState": "value",
    "ListState": "list_element",
    "MapState": "user_map_value",
}
_USER_KEY_COLUMN: Final = "user_map_key"


@dataclass(frozen=True, slots=True)
class ImportReport:
    """An import that was written."""

    place: str
    id: str
    batch: CommittedBatch
    """The batch whose state it is, with positions."""
    rows: Mapping[str, int]
    """Values, elements and entries by variable."""
    timers: int
    by_owner: Mapping[str, int]
    """Rows by the journal whose shard takes them; under an empty name, those of the one shard."""


def import_state(
    spark: SparkSession,
    application: KeyedApplication,
    checkpoint: str,
    *,
    batch_id: int | None = None,
    operator_id: int | None = None,
) -> ImportReport:
    """Write the state of a stopped query to the place from which the application's shards import it.

    Nothing is changed in the checkpoint. A call that ends early leaves files that nothing reads; the next one writes
    others.

    Args:
        spark: A session that reads the checkpoint; its executors need broadsheet, and see the place.
        application: With `takeOver`, its place, and the journals by which keys are chosen.
        checkpoint: The query's checkpoint location.
        batch_id: Take the state of this batch over; None: of the last one that is committed.
        operator_id: Of the operator, if the query has several of its kind.

    Raises:
        ValidationError: the state cannot be taken over, or the application cannot read it; the error says why.
        StateImportError: Spark cannot read the checkpoint, counts differ, or the query runs.
        ImportFilesError: the place cannot be written.
    """
    given = application.imported
    if given is None:
        raise ValidationError(
            "takeOver", "expected the place of the import, the application has none"
        )
    place = ImportPlace(given.place)
    if place.has_manifest():
        raise ValidationError(
            "takeOver",
            f"expected a place without an import: shards that have imported {given.place} do not look at it again",
        )
    checked_mapping(given.journals, application.settings.key.schema)
    with _import_conf(spark), _errors_of_spark(checkpoint):
        query = _Query(spark, checkpoint.rstrip("/"), given, application)
        manifest = query.exported(batch_id, operator_id)
    place.write_manifest(manifest)
    return query.report(manifest)


class _Query:
    """A stopped query, by its checkpoint."""

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        given: StateImport,
        application: KeyedApplication,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._given = given
        self._application = application
        self._batch: CommittedBatch

    def exported(self, batch_id: int | None, operator_id: int | None) -> ImportManifest:
        """Write all files; return their manifest."""
        self._batch = batch = self._committed(batch_id)
        operator = self._operator(operator_id)
        frames = {each.name: self._state(each, operator) for each in operator.variables}
        schemas = {name: _file_schema(name, frame) for name, frame in frames.items()}
        key = self._key_of(operator, schemas)
        given = self._given
        time_mode, meta = modes_of(operator.time_mode, operator.output_mode)
        manifest = ImportManifest(
            id=uuid4().hex,
            origin=f"{self._checkpoint}, batch {batch.number}, operator {operator.id}",
            key=key.serialize().to_pybytes(),
            variables=[_imported(each, schemas[each.name]) for each in operator.variables],
            files=[],
            time_mode=time_mode,
            shard=given.shard,
            batch_ms=batch.batch_ms,
            late_ms=batch.late_ms,
            watermark_ms=batch.watermark_ms,
            positions=dict(batch.positions),
            told=list(batch.told),
            meta=meta,
        )
        # Before rows are written, because that takes long.
        self._application.check_import(manifest)
        files = [
            file
            for each in operator.variables
            for file in self._written(each.name, frames[each.name], schemas[each.name])
        ]
        if operator.has_timers:
            timers = self._timers(operator)
            files += self._written("", timers, _file_schema("", timers))
        self._check_stopped(batch_id)
        return replace(manifest, files=files)

    def report(self, manifest: ImportManifest) -> ImportReport:
        """Return what was written."""
        by_owner: dict[str, int] = {}
        for each in manifest.files:
            by_owner[each.owner] = by_owner.get(each.owner, 0) + each.rows
        rows = dict(manifest.counts_of(by_owner))
        timers = rows.pop("")
        return ImportReport(self._given.place, manifest.id, self._batch, rows, timers, by_owner)

    # -- what the checkpoint has

    def _logs(self, folder: str) -> DataFrame:
        # Spark reads them, because they are where its own file systems reach.
        files = self._spark.read.text(f"{self._checkpoint}/{folder}", wholetext=True)
        return files.select(col("_metadata.file_name").alias("name"), col("value"))

    def _committed(self, batch_id: int | None) -> CommittedBatch:
        names = [row.name for row in self._logs("commits").select("name").collect()]
        number = last_committed(names, batch_id)
        return committed_batch(number, self._log("offsets", number), self._log("commits", number))

    def _log(self, folder: str, number: int) -> str:
        found = self._logs(folder).where(col("name") == str(number)).collect()
        if not found:
            raise StateImportError(
                self._checkpoint,
                f"it has no {folder}/{number}, which a checkpoint whose batch {number} is committed has: the copy is "
                "not complete",
            )
        return str(found[0].value)

    def _check_stopped(self, batch_id: int | None) -> None:
        """Refuse what was read if the query has committed meanwhile."""
        if batch_id is None and self._committed(None).number != self._batch.number:
            raise StateImportError(self._checkpoint, "the query is running: stop it first")

    def _operator(self, operator_id: int | None) -> StoredOperator:
        rows = self._spark.read.format("state-metadata").load(self._checkpoint)
        columns = ("operatorId", "operatorName", "operatorProperties")
        found = {tuple(row) for row in rows.select(*columns).collect()}
        return operator_of(sorted(found), operator_id)

    def _reader(self, operator: StoredOperator, **options: str | bool) -> DataFrame:
        reader = self._spark.read.format("statestore").options(
            operatorId=operator.id, batchId=self._batch.number, **options
        )
        return reader.load(self._checkpoint)

    def _state(self, variable: StoredVariable, operator: StoredOperator) -> DataFrame:
        frame = self._reader(operator, stateVarName=variable.name)
        value = _VALUE_COLUMNS[variable.kind]
        columns = [col("key").alias(KEY)]
        if variable.kind == "MapState":
            columns.append(col(_USER_KEY_COLUMN).alias(USER_KEY))
        if variable.expires:
            columns += [
                col(f"{value}.value").alias(VALUE),
                col(f"{value}.ttlExpirationMs").alias(EXPIRY),
            ]
        else:
            columns.append(col(value).alias(VALUE))
        return frame.select(*columns)

    def _timers(self, operator: StoredOperator) -> DataFrame:
        frame = self._reader(operator, readRegisteredTimers=True)
        return frame.select(col("key").alias(KEY), col("expiration_timestamp_ms").alias(EXPIRY))

    def _key_of(self, operator: StoredOperator, schemas: Mapping[str, pa.Schema]) -> pa.Schema:
        known = list(schemas.values())
        if not known:
            known = [_file_schema("", self._timers(operator))] if operator.has_timers else []
        if not known:
            raise ValidationError(
                "checkpoint", "expected an operator with variables or timers, it has none"
            )
        return pa.schema(list(known[0].field(KEY).type))

    # -- files

    def _written(self, name: str, frame: DataFrame, schema: pa.Schema) -> list[ImportedFile]:
        """Write the rows of a variable, and compare their number with Spark's."""
        export = StateExport(
            place=self._given.place,
            variable=name,
            schema=schema,
            key=self._application.settings.key.schema,
            journals=self._given.journals,
        )
        seen = Observation(f"rows-{uuid4().hex}")
        frame = frame.observe(seen, count(lit(1)).alias("rows"))
        files = [
            ImportedFile(row.path, row.owner, name, row.rows)
            for row in frame.mapInArrow(export, WRITTEN).collect()
        ]
        rows = sum(each.rows for each in files)
        if rows != seen.get["rows"]:
            what = f"variable {name}" if name else "timers"
            raise StateImportError(
                self._checkpoint,
                f"{what}: Spark has read {seen.get['rows']} rows, and {rows} were written",
            )
        return files


def _file_schema(name: str, frame: DataFrame) -> pa.Schema:
    """Return the schema of a variable's files: the types that our state has for those of Spark."""
    fields = []
    for each in frame.schema.fields:
        if isinstance(each.dataType, StructType):
            inner = as_nullable_throughout(arrow_schema(each.dataType, name or each.name))
            fields.append(pa.field(each.name, pa.struct(list(inner))))
        else:
            fields.append(pa.field(each.name, pa.int64()))
    return pa.schema(fields)


def _imported(variable: StoredVariable, schema: pa.Schema) -> ImportedVariable:
    def serialized(column: str) -> bytes:
        content: bytes = pa.schema(list(schema.field(column).type)).serialize().to_pybytes()
        return content

    user_key = serialized(USER_KEY) if variable.kind == "MapState" else b""
    return ImportedVariable(variable.name, variable.kind, serialized(VALUE), user_key)


@contextmanager
def _import_conf(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in _CONF}
    for name, value in _CONF.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


@contextmanager
def _errors_of_spark(checkpoint: str) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise StateImportError(
            checkpoint, f"Spark cannot read it: {_first_lines(error)}"
        ) from error


def _first_lines(error: Any) -> str:
    return " ".join(str(error).split("\n\n")[0].split())[:1_000]
