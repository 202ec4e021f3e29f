"""Imports that a test writes, and lives of a shard that begins with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.keyed.application import KeyedApplication
from broadsheet.consumer.keyed.imports.files import ImportPlace
from broadsheet.consumer.keyed.imports.manifest import (
    EXPIRY,
    KEY,
    USER_KEY,
    VALUE,
    ImportedFile,
    ImportedVariable,
    ImportManifest,
)
from broadsheet.consumer.keyed.processor import KeyedProcessor
from broadsheet.consumer.keyed.run import KeyedRun
from broadsheet.testing.stores.subject import FixedShard, RecordedSubject
from broadsheet.wire.labels import KEY_BEGIN, KEY_END, label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.keyed_runs import Lives, SteppedClock

KEYS = pa.schema([("user", pa.string())])


@dataclass(frozen=True)
class SourcedShard(FixedShard):
    """A shard with sources."""

    sources: tuple[str, ...] = ("clicks/0",)
    keys: tuple[str, str] | None = None
    """Labels of its range of keys."""

    @property
    def spec(self) -> ShardSpec:
        """A spec with these sources."""
        spec = ShardSpec(
            id=self.id, sources=[ShardSpec.Source(journal=each) for each in self.sources]
        )
        if self.keys is not None:
            begin, end = self.keys
            spec.labels.CopyFrom(label_set((KEY_BEGIN, begin), (KEY_END, end)))
        return spec


@dataclass(frozen=True, slots=True)
class Content:
    """Rows of a variable: (key, user key, value, expiry); timers have no name, and no values."""

    name: str
    kind: Any
    schema: pa.Schema
    rows: Sequence[tuple[Any, Any, Any, int | None]]
    user_key: pa.Schema | None = None


def write_import(
    place: Path, contents: Mapping[str, Sequence[Content]], **manifest: Any
) -> ImportManifest:
    """Write an import with contents by owner; return its manifest."""
    files = ImportPlace(str(place))
    written: list[ImportedFile] = []
    variables: dict[str, ImportedVariable] = {}
    for owner, of_owner in contents.items():
        for each in of_owner:
            written.append(_written(files, owner, each))
            user_key = b"" if each.user_key is None else each.user_key.serialize().to_pybytes()
            if each.name:
                variables[each.name] = ImportedVariable(
                    each.name, each.kind, each.schema.serialize().to_pybytes(), user_key
                )
    made = ImportManifest(
        id=manifest.pop("id", "1"),
        origin="a test",
        key=KEYS.serialize().to_pybytes(),
        variables=list(variables.values()),
        files=written,
        **manifest,
    )
    files.write_manifest(made)
    return made


def _written(files: ImportPlace, owner: str, content: Content) -> ImportedFile:
    keys = [{"user": key} for key, _, _, _ in content.rows]
    columns = {KEY: pa.array(keys, pa.struct(list(KEYS)))}
    if content.user_key is not None:
        user_keys = [row[1] for row in content.rows]
        columns[USER_KEY] = pa.array(user_keys, pa.struct(list(content.user_key)))
    if content.name:
        values = [row[2] for row in content.rows]
        columns[VALUE] = pa.array(values, pa.struct(list(content.schema)))
    if any(row[3] is not None for row in content.rows):
        columns[EXPIRY] = pa.array([row[3] for row in content.rows], pa.int64())
    table = pa.table(columns)
    writer = files.new_file(owner, content.name, table.schema)
    writer.write(table)
    return writer.close()


def _no_processor() -> KeyedProcessor:
    raise AssertionError("the application makes it")


class ImportingLives(Lives):
    """One shard of an application, whose store decides what it begins with."""

    def __init__(
        self, directory: Path, application: KeyedApplication, shard: FixedShard | None = None
    ) -> None:
        """Begin the first life.

        Args:
            directory: For the store's files.
            application: Its clock is the machine's unless it has another.
            shard: With the sources whose keys it owns.
        """
        self.application = application
        self._given = shard or SourcedShard()
        super().__init__(directory, _no_processor, application.settings, clock=SteppedClock())

    def new_subject(self, directory: Path, **_: Any) -> RecordedSubject:
        """Return a subject whose stores are those of the application."""
        self.shard = self._given

        def new_store(shard: Shard) -> Any:
            return self.application.new_store(shard)

        def nothing(*_: Any) -> dict[str, int]:
            return {}

        return RecordedSubject(
            directory, new_store=new_store, put=lambda *_: None, committed=nothing
        )

    def new_run(self) -> KeyedRun:
        """Return the transactions that the store made."""
        run: KeyedRun = self._store.run
        return run

    def state(self, name: str, *key: Any) -> Any:
        """Return a variable of a key as of the last commit."""
        return self._store.state(name, *key)
