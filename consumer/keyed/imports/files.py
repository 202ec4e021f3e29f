"""The files of an import, in a local directory or in any store that Arrow has a file system for.

Files are written once, under names that no other attempt uses, and the manifest is written after all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs

from broadsheet.consumer.errors import ImportFilesError
from broadsheet.consumer.keyed.imports.manifest import (
    MANIFEST,
    ImportedFile,
    ImportManifest,
    decode_manifest,
)
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.errors import ValidationError

BATCH_BYTES_MAX: Final = 8 << 20
"""Of a batch of rows in a file: one commit of a shard has so much."""
BATCH_ROWS_MAX: Final = 16_384
_NO_OWNER: Final = "all"
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd")
_ERRORS: Final = (OSError, pa.ArrowException)


class ImportPlace:
    """The directory of an import."""

    def __init__(self, place: str) -> None:
        """Open nothing yet.

        Args:
            place: A path, or a URI such as `s3://bucket/imports/visits`.

        Raises:
            ValidationError: it is none.
        """
        self.name = place
        try:
            if "://" in place:
                self._files, self._root = pa.fs.FileSystem.from_uri(place)
            else:
                self._files, self._root = pa.fs.LocalFileSystem(), str(Path(place).absolute())
        except _ERRORS as error:
            raise ValidationError(
                "place", f"expected a path or a URI, got {place!r}: {error}"
            ) from error

    def has_manifest(self) -> bool:
        """Tell whether an import is here that is complete.

        Raises:
            ImportFilesError: the place cannot be looked at.
        """
        with self._errors("look at", MANIFEST):
            (found,) = self._files.get_file_info([self._at(MANIFEST)])
        return bool(found.type != pa.fs.FileType.NotFound)

    def manifest(self) -> ImportManifest:
        """Read the manifest.

        Raises:
            ImportFilesError: there is none, or it cannot be read.
        """
        if not self.has_manifest():
            raise ImportFilesError(
                f"there is no complete import in {self.name}: it has no {MANIFEST}. Run shardctl keyed import first"
            )
        try:
            with (
                self._errors("read", MANIFEST),
                self._files.open_input_stream(self._at(MANIFEST)) as stream,
            ):
                return decode_manifest(stream.read())
        except DocumentError as error:
            raise ImportFilesError(f"{self.name}/{MANIFEST} is no manifest: {error}") from error

    def write_manifest(self, manifest: ImportManifest) -> None:
        """Write the manifest, which completes the import.

        Raises:
            ImportFilesError: it cannot be written.
        """
        draft = self._at(f"{MANIFEST}.{uuid4().hex}")
        with self._errors("write", MANIFEST):
            self._files.create_dir(self._root, recursive=True)
            with self._files.open_output_stream(draft) as stream:
                stream.write(manifest.encode())
            self._files.move(draft, self._at(MANIFEST))

    def new_file(self, owner: str, name: str, schema: pa.Schema) -> ImportFileWriter:
        """Begin a file that no other attempt writes.

        Args:
            owner: Of its keys.
            name: Of its variable; empty for timers.
            schema: Of its rows.

        Raises:
            ImportFilesError: it cannot be made.
        """
        folder = quote(owner, safe="") or _NO_OWNER
        path = f"{folder}/{quote(name, safe='') or 'timers'}-{uuid4().hex}.arrow"
        with self._errors("write", path):
            self._files.create_dir(self._at(folder), recursive=True)
            stream = self._files.open_output_stream(self._at(path))
            sink = pa.ipc.new_stream(stream, schema, options=_OPTIONS)
        return ImportFileWriter(ImportedFile(path, owner, name, 0), sink, stream, self._errors)

    def batches(self, file: ImportedFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, and check that they are all there.

        Raises:
            ImportFilesError: it cannot be read, or has another number of rows than the manifest says.
        """
        rows = 0
        with (
            self._errors("read", file.path),
            self._files.open_input_stream(self._at(file.path)) as stream,
            pa.ipc.open_stream(stream) as reader,
        ):
            for batch in reader:
                rows += len(batch)
                yield batch
        if rows != file.rows:
            raise ImportFilesError(
                f"{self.name}/{file.path} has {rows} rows, and its manifest says {file.rows}: import again, to another "
                "place"
            )

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    @contextmanager
    def _errors(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            raise ImportFilesError(f"cannot {doing} {self.name}/{path}: {error}") from error


class _Closable(Protocol):
    def close(self) -> None: ...


class ImportFileWriter:
    """Writes one file."""

    def __init__(
        self,
        file: ImportedFile,
        sink: pa.RecordBatchWriter,
        stream: _Closable,
        errors: Callable[[str, str], AbstractContextManager[None]],
    ) -> None:
        self._file = file
        self._sink = sink
        self._stream = stream
        self._errors = errors
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Append rows, in batches that one commit of a shard takes.

        Raises:
            ImportFilesError: they cannot be written.
        """
        if not len(rows):
            return
        each = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES_MAX * len(rows) // max(1, rows.nbytes)))
        with self._errors("write", self._file.path):
            # One chunk each: where batches end is where a shard goes on.
            self._sink.write_table(rows.combine_chunks(), max_chunksize=each)
        self._rows += len(rows)

    def close(self) -> ImportedFile:
        """Complete the file; return what a manifest says of it."""
        with self._errors("write", self._file.path):
            self._sink.close()
            self._stream.close()
        file = self._file
        return ImportedFile(file.path, file.owner, file.variable, self._rows)
