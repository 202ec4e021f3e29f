"""Directory of an embedded store's files, and the recorder of its changes.

with a recovery log     the log is the store: the directory is a copy, made for one life of the shard in one process,
                        given to the store, and removed when the store is destroyed
without one             the directory is the store: it belongs to the application, and stays
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from broadsheet.consumer.errors import UnsupportedSpecError
from broadsheet.consumer.recoverylog.follower import StandbyFollower
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.runtime.file_removal import remove_file


@dataclass(frozen=True, slots=True)
class LocalState:
    """A directory for the files of one shard's store."""

    directory: Path
    """Absolute. With a recorder it holds what was played from the recovery log, or nothing; the store owns it."""
    recorder: FileRecorder | None = None
    """Puts every change of the files into the shard's recovery log. None: there is no log."""
    kept: Path | None = None
    """Where the application keeps the files of shards without a log; not used, because this one has a log."""
    follower: StandbyFollower | None = None
    """The follower of these files while this was a standby, if the application has one."""
    fork: str = ""
    """The attempt by which a split made this shard of another one's files; empty: none did."""

    @property
    def temporary(self) -> bool:
        """Report whether the directory is removed with the store, because the log holds all of it."""
        return self.recorder is not None


class HasLocalState(Protocol):
    """The part of `broadsheet.consumer.application.Shard` that an embedded store needs."""

    @property
    def id(self) -> str:
        """The shard's id."""
        ...

    @property
    def local_state(self) -> LocalState | None:
        """Set if the shard has a recovery log."""
        ...


_NAME_BYTES_MAX: Final = 255
"""Of a file's name, in all file systems that matter."""


def directory_name(shard_id: str) -> str:
    """Return the name of a shard's directory, which no other shard has.

    It is the id in percent-encoding. If that is longer than a name may be, its beginning and a digest stand for it,
    behind an `@`, which percent-encoding never leaves.
    """
    quoted = quote(shard_id, safe="")
    return quoted if len(quoted) <= _NAME_BYTES_MAX else cut_with_digest(quoted, _NAME_BYTES_MAX)


def cut_with_digest(name: str, length_max: int) -> str:
    """Return the beginning of a name and a digest of all of it, of `length_max` characters together."""
    digest = blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{name[: length_max - len(digest) - 1]}@{digest}"


def local_state_of(shard: HasLocalState, given: LocalState | None) -> LocalState:
    """Return the directory for the store of `shard`: the shard's own, else the `given` one.

    The log comes first, so that one application serves both: recorded where the spec names a log, kept elsewhere.

    Raises:
        UnsupportedSpecError: there is neither; another spec helps.
    """
    if shard.local_state is not None and given is not None:
        return replace(shard.local_state, kept=given.directory)
    local_state = shard.local_state or given
    if local_state is None:
        raise UnsupportedSpecError(
            "local_state",
            f"shard {shard.id} has no recovery log to keep an embedded store in: set recovery_log_prefix and "
            "hint_prefix in its spec, or give the store a LocalState(directory) on a disk that stays",
        )
    return local_state


# Common ways of recording files, such that a log which ends anywhere replays to a directory that a store can open.

CHUNK_BYTES = 1 << 20
"""Longest content of one recorded write: it is held in memory, and shipped whole."""


def recorded_path(name: str) -> str:
    """Return the log's name for a file of the store's directory."""
    return f"/{name}"


def record_write(recorder: FileRecorder, name: str, offset: int, content: bytes) -> None:
    """Record a write of any length, bytes [offset, offset + len(content)), in chunks."""
    view = memoryview(content)
    for begin in range(0, len(view), CHUNK_BYTES):
        chunk = view[begin : begin + CHUNK_BYTES]
        recorder.write(recorded_path(name), offset + begin, bytes(chunk))


def record_file(recorder: FileRecorder, name: str, chunks: Iterable[bytes]) -> int:
    """Record a new file and all its content; return its length in bytes."""
    recorder.create(recorded_path(name))
    offset = 0
    for chunk in chunks:
        record_write(recorder, name, offset, chunk)
        offset += len(chunk)
    return offset


def replace_file(
    recorder: FileRecorder, name: str, chunks: Iterable[bytes], *, by_way_of: str
) -> int:
    """Record a file's atomic replacement: all of it under another name, then the rename."""
    length = record_file(recorder, by_way_of, chunks)
    recorder.rename(recorded_path(by_way_of), recorded_path(name))
    return length


def remove_if_there(recorder: FileRecorder | None, directory: Path, name: str) -> None:
    """Remove a file that an earlier life left unfinished, here and in the log."""
    path = directory / name
    if path.exists():
        remove_file(path)
        if recorder is not None:
            recorder.remove(recorded_path(name))
