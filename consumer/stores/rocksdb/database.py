"""A RocksDB and its column families, opened and closed as one.

A family's handle and an iterator each keep the database open, and its lock held, for as long as they are
referred to. They are therefore referred to here only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import cast

from rocksdict import Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from consumer.stores.rocksdb.committed_view import DEFAULT_FAMILY, CommittedView, first_key
from consumer.stores.rocksdb.options import fix_options, new_options
from consumer.stores.rocksdb.pending import PendingWrites

CHECKPOINT_KEY = b"\x00\x12checkpoint\x00\x01"
"""An ordered encoding of (null, "checkpoint"); Gazette's store keeps its checkpoint there too."""

SEGMENT_PREFIX = b"\x00\x12producers\x00"
"""Before the ids of segments that the checkpoint rests on."""

Tune = Callable[[str, Options], None]


class Database:
    """An open database; for the store's threads, one at a time writing."""

    def __init__(
        self,
        directory: Path,
        families: Collection[str],
        *,
        write_buffer_bytes: int,
        tune: Tune | None,
        durable: bool,
    ) -> None:
        """Open it, or make it, with the families that it has and those named."""
        path = str(directory)
        existing = Rdict.list_cf(path) if (directory / "CURRENT").exists() else []
        options = {
            name: _options(name, write_buffer_bytes, tune)
            for name in sorted({DEFAULT_FAMILY, *families, *existing})
        }
        default = options.pop(DEFAULT_FAMILY)
        self._main = Rdict(path, default, column_families=options)
        self._families = {DEFAULT_FAMILY: self._main}
        self._families.update({name: self._main.get_column_family(name) for name in options})
        self._write_options = WriteOptions()
        self._write_options.sync = durable

    def __contains__(self, family: str) -> bool:
        """Tell whether there is such a family."""
        return family in self._families

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return a value as of the last write."""
        value: bytes | None = self._families[family].get(key)
        return value

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """Return several values as of the last write, shape (len(keys),)."""
        values: list[bytes | None] = self._families[family].get(keys)  # type: ignore[assignment, arg-type]
        return values

    def items(self, family: str, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield what [begin, end) holds as of now, in order of keys."""
        begin = first_key(family, begin)
        if end is not None and end <= begin:
            return iter(())
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        items = self._families[family].items(from_key=begin, read_opt=options)
        return cast("Iterator[tuple[bytes, bytes]]", items)

    def segments(self) -> dict[bytes, bytes]:
        """Return the contents of segments, by id."""
        options = ReadOptions()
        options.set_iterate_upper_bound(SEGMENT_PREFIX[:-1] + b"\x01")
        items = self._main.items(from_key=SEGMENT_PREFIX, read_opt=options)
        stored = cast("Iterator[tuple[bytes, bytes]]", items)
        return {key[len(SEGMENT_PREFIX) :]: content for key, content in stored}

    def write(
        self, pending: PendingWrites, checkpoint: bytes, segments: Mapping[bytes, bytes | None]
    ) -> None:
        """Write a transaction and its checkpoint, all or nothing.

        Args:
            pending: The transaction.
            checkpoint: As it is kept.
            segments: Changes of segments, by id; None: it is there no more.
        """
        batch = WriteBatch(raw_mode=True)
        batch.put(CHECKPOINT_KEY, checkpoint)
        for segment_id, content in segments.items():
            if content is None:
                batch.delete(SEGMENT_PREFIX + segment_id)
            else:
                batch.put(SEGMENT_PREFIX + segment_id, content)
        for name, changes in pending.families.items():
            handle = self._main.get_column_family_handle(name)
            for key, value in changes.items():
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        self._main.write(batch, self._write_options)

    def committed_view(self) -> CommittedView:
        """Return what is written now.

        Requires:
            Nobody writes meanwhile.
        """
        return CommittedView({name: family.iter() for name, family in self._families.items()})

    def close(self) -> None:
        """Close it. Idempotent."""
        families = [self._families[name] for name in self._families if name != DEFAULT_FAMILY]
        self._families = {}
        for family in families:
            family.close()
        self._main.close()


def _options(family: str, write_buffer_bytes: int, tune: Tune | None) -> Options:
    options = new_options(write_buffer_bytes)
    if tune is not None:
        tune(family, options)
    fix_options(options)
    return options
