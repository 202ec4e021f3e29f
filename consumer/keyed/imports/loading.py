"""Loads an import into the store of a shard that starts, in recorded commits, before anything else uses the store.

    restored ─► step (mark.py) ─► clear ─► a commit a batch of rows, with the mark ─► counts compared
             ─► last commit: times, positions, mark DONE ─► the shard starts

A commit has a batch of rows and how far that is, so a life that ends is gone on from, and no row is loaded twice.
Memory is that of two batches, and the store's cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Final

import pyarrow as pa
import structlog
from msgspec import msgpack
from msgspec.structs import replace

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import ImportFilesError, StoreError
from broadsheet.consumer.keyed.imports.column_values import rows_of_struct, values_of
from broadsheet.consumer.keyed.imports.files import ImportPlace
from broadsheet.consumer.keyed.imports.manifest import (
    EXPIRY,
    KEY,
    USER_KEY,
    VALUE,
    ImportedFile,
    ImportManifest,
)
from broadsheet.consumer.keyed.imports.mark import (
    MARK,
    ImportMark,
    ImportPhase,
    ImportRefusedError,
    ImportStep,
    decoded_mark,
    next_step,
)
from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.processor import KeyedProcessor, StateHandle
from broadsheet.consumer.keyed.registry import REGISTRY, Registry
from broadsheet.consumer.keyed.run import KeyedSettings
from broadsheet.consumer.keyed.state_rows import GROUP_BYTES, VARIABLE_BYTES, place_of
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.timers import expiries_of
from broadsheet.consumer.keyed.txn_time import TIMES, TimeMode, TimeState
from broadsheet.consumer.keyed.variables import (
    KINDS,
    Current,
    ListState,
    MapState,
    ValueState,
    Variable,
)
from broadsheet.journals.message.partitioning import BatchMapping
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.key_range import key_range_of
from broadsheet.wire.shard_pb2 import Checkpoint

_log = structlog.get_logger()
_CLEARED_ROWS: Final = 16_384
"""Rows that a commit removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateImport:
    """State that a shard begins with, as `shardctl keyed import` wrote it."""

    place: str
    """Directory of the import: a path that all members see, or a URI such as `s3://bucket/imports/visits`. A shard
    that has imported it looks at it no more, so another import needs another place."""
    journals: BatchMapping | None = None
    """Chooses the journal of each key, as the producers of the sources do: a shard takes the keys of its own journals.
    The rows that it gets have the key's columns. None: one shard takes all keys."""
    shard: str = ""
    """Id of that one shard, if there is no `journals`."""
    replaces: bool = False
    """Remove state that a shard has; else a shard with state refuses to start."""

    def __post_init__(self) -> None:
        """Check that it is clear which shard owns a key.

        Raises:
            ValidationError: it is not, or there is no place.
        """
        if not self.place:
            raise ValidationError("place", "expected a path or a URI, got none")
        if (self.journals is None) == (not self.shard):
            raise ValidationError(
                "journals",
                "expected either journals, or the id of the one shard that takes all keys",
            )


def begun_with_import(
    store: KeyedStore,
    shard: Shard,
    checkpoint: Checkpoint,
    settings: KeyedSettings,
    given: StateImport | None,
) -> bool:
    """Load an import into a restored store if there is one to load; return whether it made commits.

    Args:
        store: Restored, and used by nothing else yet.
        shard: Its sources are the journals whose keys it owns.
        checkpoint: As restored.
        settings: Of the application.
        given: The import that the application names.

    Raises:
        StoreError: the shard must not start so, or the import failed; the error says what to do.
    """
    try:
        mark = decoded_mark(store.meta(MARK))
        place = None if given is None else given.place
        replaces = given is not None and given.replaces
        step = next_step(mark, place, has_state=store.has_commits, replaces=replaces)
        if step is ImportStep.NOTHING:
            return False
        assert given is not None, "only an import that is named is loaded"
        if not (owned := key_range_of(shard.spec.labels)).is_all:
            # Each shard of a family would load the keys of all.
            raise ImportRefusedError(
                f"it owns the keys {owned} alone: import into one shard that owns all keys, then divide it"
            )
        load = _Load(store, shard, checkpoint, settings, given.place)
        if step is ImportStep.CLEAR:
            load.clear()
            mark = None
        load.run(mark)
    except (ImportRefusedError, ImportFilesError, ValidationError) as error:
        raise StoreError(shard.fqn, f"cannot begin with imported state: {error}") from error
    return True


def require_complete(store: KeyedStore, shard: Shard) -> None:
    """Refuse to read a store with half of an import, as a standby may have it.

    Raises:
        StoreError: it has.
    """
    mark = decoded_mark(store.meta(MARK))
    if mark is not None and mark.phase is not ImportPhase.DONE:
        raise StoreError(shard.fqn, f"its import of {mark.place} is not complete yet")


def registered_variables(registry: Registry, manifest: ImportManifest) -> dict[str, Any]:
    """Return the types of an import's variables, which become known to a registry.

    Raises:
        ValidationError: a variable has a type that state cannot hold; the error names it.
    """
    types: dict[str, Any] = {}
    for each in manifest.variables:
        if each.kind not in KINDS:
            raise ValidationError(each.name, f"expected one of {', '.join(KINDS)}, got {each.kind}")
        user_key = _schema_of(each.user_key) if each.user_key else None
        types[each.name] = registry.register(
            each.name, each.kind, _schema_of(each.schema), None, user_key
        )
    return types


def require_key(manifest: ImportManifest, key: KeyCodec) -> None:
    """Refuse an import whose keys are not those of the application.

    Raises:
        ValidationError: they have other types.
    """
    found, wanted = _schema_of(manifest.key), key.schema
    if found.types != wanted.types:
        raise ValidationError(
            "key",
            f"expected {_shown(wanted)}, as the application groups by, the import has {_shown(found)}",
        )


def check_import(
    manifest: ImportManifest, key: KeyCodec, mode: TimeMode, processor: KeyedProcessor
) -> None:
    """Refuse an import that a processor cannot begin with, before anything is loaded.

    Args:
        manifest: Its files need not be there.
        key: Of the application.
        mode: The same.
        processor: Not initialised; it is initialised and closed.

    Raises:
        ValidationError: key, time mode or a variable do not fit; the error names it.
    """
    require_key(manifest, key)
    require_mode(manifest, mode)
    registry = Registry(None)
    registered_variables(registry, manifest)
    # Declarations alone are tried: there is no key whose rows a processor could ask for.
    nothing: Any = None
    processor.init(StateHandle(nothing, registry, Current(), mode, key.schema.names))
    processor.close()


def require_mode(manifest: ImportManifest, mode: TimeMode) -> None:
    """Refuse an import whose timers are of another kind of time.

    Raises:
        ValidationError: they are.
    """
    if manifest.time_mode != mode.value:
        raise ValidationError(
            "time",
            f"expected {manifest.time_mode!r}, as the import has it, the application has {mode.value!r}",
        )


class _Load:
    """One life's part of the loading of an import."""

    def __init__(
        self,
        store: KeyedStore,
        shard: Shard,
        checkpoint: Checkpoint,
        settings: KeyedSettings,
        place: str,
    ) -> None:
        self._store = store
        self._shard = shard
        self._read = checkpoint
        """The checkpoint before the import, which its commits repeat until the last one."""
        self._key = settings.key
        self._place = ImportPlace(place)
        self._manifest = self._place.manifest()
        require_key(self._manifest, settings.key)
        require_mode(self._manifest, settings.mode)
        self._owners = _owners(self._manifest, shard)
        self._pending: OpFuture | None = None
        self._current = Current()
        self._variables: dict[str, Variable] = {}

    # -- former state

    def clear(self) -> None:
        """Remove all state."""
        store = self._store
        mark = self._mark(ImportPhase.CLEARING)
        for name in store.meta_names():
            store.put_meta(name, None)
        self._commit(mark)
        # What is removed must be gone from the index before more is looked for.
        self._settle()
        while store.drop_rows(_CLEARED_ROWS):
            self._commit(mark)
            self._settle()

    # -- its rows

    def run(self, mark: ImportMark | None) -> None:
        """Load what is not loaded yet, and complete the import.

        Args:
            mark: How far a former life has come; None: nothing is loaded.
        """
        if mark is not None and mark.id != self._manifest.id:
            # Other files took the place of those that a former life began with.
            self.clear()
            mark = None
        mark = mark or self._mark(ImportPhase.LOADING)
        self._declare()
        files = self._manifest.files_of(self._owners)
        _log.info(
            "keyed.import_begun",
            shard=self._shard.fqn,
            place=mark.place,
            files=len(files) - mark.file,
        )
        for number, file in enumerate(files):
            if number < mark.file:
                continue
            mark = self._load_file(number, file, mark)
        self._settle()
        self._compare()
        self._complete(mark)

    def _declare(self) -> None:
        registry = Registry(self._store.meta(REGISTRY))
        for name, type_ in registered_variables(registry, self._manifest).items():
            kind = next(each.kind for each in self._manifest.variables if each.name == name)
            self._variables[name] = KINDS[kind](type_, self._store, self._current)
        self._store.put_meta(REGISTRY, registry.encode())

    def _load_file(self, number: int, file: ImportedFile, mark: ImportMark) -> ImportMark:
        done = mark.batch if mark.file == number else 0
        batches = enumerate(self._place.batches(file))
        for place, batch in islice(batches, done, None):
            self._load_batch(file, batch)
            mark = replace(mark, file=number, batch=place + 1)
            self._commit(mark)
        return replace(mark, file=number + 1, batch=0)

    def _load_batch(self, file: ImportedFile, batch: pa.RecordBatch) -> None:
        self._require_columns(file, batch.schema.names)
        columns = [values_of(column) for column in batch.column(KEY).flatten()]
        keys = self._key.encode_all(columns)
        places = list(map(place_of, keys))
        self._store.prefetch(list(dict.fromkeys(places)))
        has_expiry = EXPIRY in batch.schema.names
        expiries = batch.column(EXPIRY).to_pylist() if has_expiry else [None] * len(batch)
        if not file.variable:
            for key, expiry in zip(keys, expiries, strict=True):
                self._store.add_timer(key, expiry)
            return
        variable = self._variables[file.variable]
        user_keys = _rows_or_none(batch, USER_KEY)
        rows = zip(
            zip(keys, places, strict=True),
            user_keys,
            rows_of_struct(batch.column(VALUE)),
            expiries,
            strict=True,
        )
        for (key, place), of_key in groupby(rows, key=lambda row: row[0]):
            self._current.key, self._current.place = key, place
            _load_rows(variable, [row[1:] for row in of_key])

    def _require_columns(self, file: ImportedFile, names: Sequence[str]) -> None:
        wanted = [KEY, VALUE] if file.variable else [KEY, EXPIRY]
        if isinstance(self._variables.get(file.variable), MapState):
            wanted.append(USER_KEY)
        for name in wanted:
            if name not in names:
                raise ImportFilesError(
                    f"{self._place.name}/{file.path} lacks the column {name}: import again, to another place"
                )

    def _commit(self, mark: ImportMark) -> None:
        """Start the commit of what was changed, and let the next rows be read meanwhile."""
        self._settle()
        self._store.put_meta(MARK, mark.encode())
        self._pending = self._store.start_commit(self._shard, self._read, ())
        self._current.transaction += 1

    def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _mark(self, phase: ImportPhase) -> ImportMark:
        return ImportMark(self._place.name, self._manifest.id, phase)

    # -- the end

    def _compare(self) -> None:
        """Compare what was read back from the state with the manifest.

        Raises:
            ImportRefusedError: a variable has another number of rows.
        """
        expected = self._manifest.counts_of(self._owners)
        found = stored_counts(self._store, self._key, self._variables)
        for name, rows in expected.items():
            if found[name] != rows:
                what = f"variable {name}" if name else "timers"
                raise ImportRefusedError(
                    f"{what}: the import has {rows}, and {found[name]} are in the state after it. Import again, to "
                    "another place"
                )

    def _complete(self, mark: ImportMark) -> None:
        """Commit times, positions and whatever else the state begins with."""
        manifest, store = self._manifest, self._store
        times = TimeState(
            batch_ms=manifest.batch_ms,
            watermark_ms=manifest.late_ms,
            floor_ms=manifest.watermark_ms,
        )
        store.put_meta(TIMES, msgpack.encode(times))
        for name, content in manifest.meta.items():
            store.put_meta(name.encode(), content.encode())
        for source in self._shard.spec.sources:
            if (position := manifest.positions.get(source.journal)) is not None:
                self._read.sources[source.journal].ParseFromString(position)
        self._commit(replace(mark, phase=ImportPhase.DONE))
        self._settle()
        rows = sum(manifest.counts_of(self._owners).values())
        _log.info("keyed.import_done", shard=self._shard.fqn, place=mark.place, rows=rows)


def _owners(manifest: ImportManifest, shard: Shard) -> Sequence[str]:
    """Return the owners whose keys are a shard's.

    Raises:
        ImportRefusedError: all keys are another shard's.
    """
    if not manifest.shard:
        return [source.journal for source in shard.spec.sources]
    if shard.id != manifest.shard:
        raise ImportRefusedError(
            f"all keys of the import are of shard {manifest.shard}. With several shards, StateImport needs `journals`"
        )
    return [""]


def _schema_of(content: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(content))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _rows_or_none(batch: pa.RecordBatch, name: str) -> Sequence[Any]:
    if name not in batch.schema.names:
        return [None] * len(batch)
    return rows_of_struct(batch.column(name))


def _load_rows(variable: Variable, rows: Sequence[tuple[Any, Any, Any]]) -> None:
    """Load the (user key, value, expiry) of one key, which follow each other."""
    row_type, key_type = variable.type.row_type, variable.type.key_type
    if isinstance(variable, ListState):
        variable.load([(row_type.value_of(value), expiry) for _, value, expiry in rows])
        return
    for user_key, value, expiry in rows:
        if isinstance(variable, MapState):
            assert key_type is not None, "it is a map"
            variable.load(key_type.value_of(user_key), row_type.value_of(value), expiry)
        else:
            assert isinstance(variable, ValueState), "there are three kinds"
            variable.load(row_type.value_of(value), expiry)


def stored_counts(
    store: KeyedStore, key: KeyCodec, variables: Mapping[str, Variable]
) -> Counter[str]:
    """Return the values, elements and entries of each variable in a store's last commit; timers under no name."""
    by_suffix = {each.type.suffix: (name, each) for name, each in variables.items()}
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        view = stack.enter_context(store.view())
        for name, row in view.rows():
            _, end = key.decode(name, GROUP_BYTES)
            known = by_suffix.get(name[end : end + VARIABLE_BYTES])
            if known is not None:
                variable = known[1]
                counts[known[0]] += (
                    variable.elements_in(row) if isinstance(variable, ListState) else 1
                )
        for _, row in view.timers():
            counts[""] += len(expiries_of(row))
    return counts
