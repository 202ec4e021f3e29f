"""The files of an `AggregateStore`: snapshots of the table, and the commits that follow each.

They are `broadsheet.consumer.stores.change_files`, with rows as Arrow record batches. Each snapshot has all rows. One
is due when the changes since the last one are as long as it is, so what a standby plays is at most about twice the
table, and a busy store ships each byte at most about twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.change_files import ChangeFiles, RecordedFrame, RecordedLayout
from broadsheet.consumer.stores.store_record import AGGREGATE
from broadsheet.runtime.op_future import OpFuture

SNAPSHOT_BYTES_MIN: Final = 4 << 20
"""Least bytes of changes after which a snapshot is due."""
_FILES_MAX: Final = 64
"""Files of changes after which a snapshot is due: lives that each add little must not keep an old log for ever."""
_VERSION: Final = 1


class FileLayout(RecordedLayout, frozen=True):
    """The first frame of a file."""

    key: dict[str, str]
    """Arrow type by field."""
    aggregates: dict[str, str]
    """What each column aggregates."""
    schema: bytes
    """Of the rows of all frames."""


class ChangeFrame(RecordedFrame, omit_defaults=True):
    """A commit, or a part of a snapshot."""

    rows: bytes = b""
    """A record batch of the keys that changed."""
    dropped: bytes = b""
    """A record batch of the keys that were dropped, before `rows`."""


class StoredRows:
    """The rows of one frame, decoded."""

    def __init__(self, frame: ChangeFrame, layout: FileLayout) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(layout.schema))
        keys = pa.schema([schema.field(name) for name in layout.key])
        self.rows = _batch(frame.rows, schema)
        self.dropped = _batch(frame.dropped, keys)


class AggregateFiles:
    """Reads the files of a store when it opens, and writes them while it lives."""

    def __init__(self, fqn: str, local_state: LocalState, *, snapshot_bytes_min: int) -> None:
        """Look at nothing yet.

        Args:
            fqn: The shard, for errors.
            local_state: Where the files are, or will be.
            snapshot_bytes_min: Least bytes of changes after which a snapshot is due.
        """
        self._files = ChangeFiles(
            fqn,
            local_state,
            AGGREGATE,
            layout_type=FileLayout,
            frame_type=ChangeFrame,
            version=_VERSION,
        )
        self._snapshot_bytes_min = snapshot_bytes_min

    def load(self, *, tidies: bool = True) -> Iterator[tuple[FileLayout, ChangeFrame]]:
        """Yield the frames of the last snapshot, and of the commits that follow it; see `ChangeFiles.load`."""
        for _, layout, frame in self._files.load(tidies=tidies):
            yield layout, frame

    def append(self, layout: FileLayout, commit: ChangeFrame) -> OpFuture | None:
        """Write a commit; what is returned must succeed first for it to be durable.

        Raises:
            OSError: it could not be written.
        """
        return self._files.append(layout, commit)

    @property
    def is_due(self) -> bool:
        """True if it is time for a snapshot."""
        files = self._files
        least = max(files.snapshot_bytes, self._snapshot_bytes_min)
        return len(files.present) > _FILES_MAX or files.changes_bytes > least

    def replace(self, layout: FileLayout, frames: Iterator[ChangeFrame], *, number: int) -> None:
        """Write a snapshot as of a commit, and remove what it replaces.

        Args:
            layout: Of its rows.
            frames: Of the snapshot.
            number: Of the commit; the last frame has it.

        Raises:
            OSError: it could not be written.
        """
        replaced = tuple(self._files.present)
        self._files.snapshot(layout, frames, number=number)
        self._files.remove(replaced)

    def close(self) -> None:
        """Close the files; later calls fail. Idempotent."""
        self._files.close()


def new_layout(
    key: Mapping[str, pa.DataType], aggregates: Mapping[str, str], schema: pa.Schema
) -> FileLayout:
    """Return the first frame of files with these columns."""
    return FileLayout(
        _VERSION,
        {name: str(type_) for name, type_ in key.items()},
        dict(aggregates),
        schema.serialize().to_pybytes(),
    )


def encoded_rows(batch: pa.RecordBatch) -> bytes:
    """Return rows as a frame has them."""
    encoded: bytes = batch.serialize().to_pybytes() if batch.num_rows else b""
    return encoded


def _batch(content: bytes, schema: pa.Schema) -> pa.RecordBatch | None:
    return pa.ipc.read_record_batch(pa.py_buffer(content), schema) if content else None
