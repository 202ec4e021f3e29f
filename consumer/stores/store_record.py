"""The kind of store that a directory, or a recovery log, holds the files of; and the record that says so.

A store that does not find its own file is new only if nothing else is there. Where another store's files are, opening
as empty would apply all messages again: the shard fails by name instead. The same holds where the record says that the
store has files, and they are gone.

The record is a small file beside the store's own; in the log a property, which Gazette's players take for one more
file. In a directory that stays it also names the shard, because two roots may be given one directory. It is written
after the store's first file, so a crash between the two leaves files without a record: those are adopted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from broadsheet.consumer.errors import ForeignStoreError, StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState, recorded_path
from broadsheet.consumer.stores.settled_files import sync_directory, write_at
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, LaterFormatError
from broadsheet.runtime.private_directory import FILE_MODE

STORE_RECORD: Final = Format(
    "the record of a store", "let a member of that release serve the shard"
)
RECORD: Final = ".store-record"
_NAMED_MAX: Final = 5
"""Names of files that an error lists."""
_NO_STORES: Final = re.compile(
    rf"\.recovery-log.*|\.broadsheet-fork\..*|{re.escape(RECORD)}(\.next)?|holder\.lock|epoch|lost\+found"
)
"""Files that are beside a store's own and say nothing of its kind."""


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store, recognised by the names of its files."""

    name: str
    format: int
    """Raised when older releases can no longer read the files."""
    main: re.Pattern[str]
    """The file without which the store is empty."""
    own: re.Pattern[str]
    """All its files."""

    def is_there(self, names: Collection[str]) -> bool:
        """Tell whether a directory with these files holds a store's content."""
        return any(self.main.fullmatch(name) for name in names)


JSON: Final = StoreKind(
    "json", 1, re.compile(r"state\.json"), re.compile(r"(state|next)\.json|producers-[0-9a-f]{32}")
)
SQLITE: Final = StoreKind(
    "sqlite", 1, re.compile(r"state\.db"), re.compile(r"state\.db(-wal|-shm|-journal|\.next)?")
)
ROCKSDB: Final = StoreKind(
    "rocksdb",
    1,
    re.compile(r"CURRENT"),
    re.compile(
        r"CURRENT(\.dbtmp)?|IDENTITY|MANIFEST-\d+|OPTIONS-\d+(\.dbtmp)?|\d+\.(sst|blob|log|dbtmp)|LOCK|LOG(\.old\..*)?"
        r"|rocksdict-config\.json"
    ),
)
AGGREGATE: Final = StoreKind(
    "aggregate",
    1,
    re.compile(r"(snapshot|changes)-\d{20}"),
    re.compile(r"(snapshot|changes)-\d{20}|snapshot\.next"),
)
KEYED: Final = StoreKind(
    "keyed",
    1,
    re.compile(r"(snapshot|changes)-\d{20}"),
    re.compile(r"(snapshot|changes)-\d{20}|snapshot\.next|index"),
)
"""Its files have the names of an aggregate store's: the record tells the two apart."""
GAZETTE_SQLITE: Final = StoreKind(
    "Gazette's SQLite", 1, re.compile(r"pageDB"), re.compile(r"pageDB|.+-(wal|journal)")
)
_KINDS: Final = (JSON, SQLITE, ROCKSDB, AGGREGATE, GAZETTE_SQLITE)


class StoreRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a store in its directory."""

    store: str
    """Name of its kind."""
    format: int
    shard: str = ""
    """Full name of the shard, in a directory that stays; a recovery log names its owner elsewhere."""


def encode_record(record: StoreRecord) -> str:
    """Return the record's content."""
    return msgspec.json.encode(record).decode()


def decode_record(content: bytes) -> StoreRecord:
    """Decode a record.

    Raises:
        LaterFormatError: a later release wrote it.
        DocumentError: it is none.
    """
    return STORE_RECORD.decode_json(content, StoreRecord)


def check_files(kind: StoreKind, names: Collection[str], record: StoreRecord | None) -> str:
    """Return the reason why a store must not be opened on files; empty if it may.

    Args:
        kind: Of the store.
        names: Of everything in its directory.
        record: Beside them; None: there is none.
    """
    if record is not None and record.store != kind.name:
        return f"holds files of a {record.store} store"
    if record is not None and record.format > kind.format:
        return (
            f"holds files of format {record.format}, which a later release wrote; this one knows up to {kind.format}: "
            "let a member of that release serve the shard"
        )
    if kind.is_there(names):
        return ""
    if record is not None:
        return f"has held files of this store, as {RECORD} says, and they are gone: restore them"
    others = sorted(
        name for name in names if not kind.own.fullmatch(name) and not _NO_STORES.fullmatch(name)
    )
    if not others:
        return ""
    found = [each.name for each in _KINDS if each.is_there(others)]
    listed = ", ".join(others[:_NAMED_MAX]) + (", …" if len(others) > _NAMED_MAX else "")
    way = "; SqliteStore(from_gazette=True) takes them over"
    takes = kind is SQLITE and GAZETTE_SQLITE.name in found
    return (
        f"holds files of {' and '.join(found) or 'another'} store ({listed}){way if takes else ''}"
    )


class StoreFiles:
    """The files of one store: checked before they are opened, and recorded once they are there."""

    def __init__(self, fqn: str, local_state: LocalState, kind: StoreKind) -> None:
        """Look at nothing yet.

        Args:
            fqn: The shard.
            local_state: The directory of the files.
            kind: Of the store.
        """
        self._fqn = fqn
        self._local_state = local_state
        self._wanted = StoreRecord(kind.name, kind.format, "" if local_state.temporary else fqn)
        self._kind = kind
        self._is_recorded = False

    def check(self) -> None:
        """Check that the directory holds this store's files, or nothing.

        Raises:
            ForeignStoreError: it holds others, or lacks what it has held.
            OSError: as of the disk.
        """
        directory = self._local_state.directory
        record = self._read(directory)
        self._is_recorded = record == self._wanted
        where = "its recovery log" if self._local_state.temporary else f"directory {directory}"
        if record is not None and record.shard not in ("", self._fqn):
            raise ForeignStoreError(
                self._fqn,
                f"{where} holds the files of {record.shard}: give each shard a directory of its own. If that shard was "
                f"renamed to this one, remove {directory / RECORD}",
            )
        names = _names_in(directory)
        if not self._local_state.temporary:
            # File systems and their users leave such files (.nfs…, .snapshot, .DS_Store); no store does.
            names = [name for name in names if not name.startswith(".")]
        refusal = check_files(self._kind, names, record)
        if refusal and record is not None and record.format > self._kind.format:
            raise ForeignStoreError(self._fqn, f"{where} {refusal}")
        if refusal:
            raise ForeignStoreError(
                self._fqn,
                f"{where} {refusal}; a {self._kind.name} store would start from nothing, and apply again what was "
                "applied: open the store that wrote them, or give the shard another log or directory",
            )
        if record is None and not self._kind.is_there(names):
            self._check_not_left_behind()

    def record(self) -> None:
        """Write the record, unless it is there. Call it once the store's main file is there.

        Raises:
            OSError: as of the disk.
        """
        if self._is_recorded:
            return
        content = encode_record(self._wanted)
        recorder = self._local_state.recorder
        if recorder is not None:
            recorder.set_property(recorded_path(RECORD), content)
        else:
            _write_durably(self._local_state.directory, content.encode())
        self._is_recorded = True

    def _check_not_left_behind(self) -> None:
        """Check that the shard, whose log is empty, has no state in the directory that it had before it had a log."""
        kept = self._local_state.kept
        if kept is None:
            return
        record = self._read(kept)
        # Earlier releases left no record, and the directory is where this shard's files would be.
        is_left = (
            record.shard == self._fqn
            if record is not None
            else self._kind.is_there(_names_in(kept))
        )
        if is_left:
            raise ForeignStoreError(
                self._fqn,
                f"its recovery log holds nothing, and directory {kept} holds its state of before it had a log: delete "
                "the shard and apply it without recovery_log_prefix and hint_prefix, or, to start from nothing, move "
                "the directory away",
            )

    def _read(self, directory: Path) -> StoreRecord | None:
        path = directory / RECORD
        try:
            return decode_record(path.read_bytes())
        except FileNotFoundError:
            return None
        except LaterFormatError as error:
            raise StoreError(self._fqn, f"{path}: {error}") from error
        except DocumentError as error:
            raise StoreError(
                self._fqn, f"{path} is no record of a store: {error}; restore it, or remove it"
            ) from error


def _names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def _write_durably(directory: Path, content: bytes) -> None:
    """Write the record whole beside its name, and rename it: a crash leaves one that can be read, or none."""
    following = directory / f"{RECORD}.next"
    descriptor = os.open(following, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        write_at(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    following.replace(directory / RECORD)
    sync_directory(directory)
