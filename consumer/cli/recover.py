"""`shardctl shards recover`: restores a shard's files from its recovery log, without becoming its primary."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.filesize import decimal

from broadsheet.allocator.errors import ValidationError
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.consumer.cli.connection import Connection, connection_options, run_command
from broadsheet.consumer.cli.output import counted, print_table, say
from broadsheet.consumer.cli.progress import Unit, progress_display
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.consumer.protocol.labels import ID, label_set, selector
from broadsheet.consumer.protocol.recorded_op_pb2 import FSMHints
from broadsheet.consumer.protocol.shard_pb2 import GetHintsResponse
from broadsheet.consumer.recoverylog.hints import StoredHints, has_recovery_log, recovery_log_of
from broadsheet.consumer.recoverylog.playback import PlaybackProgress
from broadsheet.consumer.recoverylog.player import Player, Recovered

LOOK_SECONDS = 0.1
"""Time between two looks at the progress."""

# Kinds of recovered files, derived from their names and first bytes.
_SQLITE = b"SQLite format 3\x00"
_WAL = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_HEAD_BYTES = 16


def total_bytes(progress: PlaybackProgress) -> int:
    """Return the bytes to play, as far as is known: hints may leave some of the rest out."""
    return progress.played_bytes + progress.behind_bytes


@dataclass(frozen=True, slots=True)
class RecoveredFile:
    """A file that was recovered."""

    path: str
    """Relative to the directory."""
    length: int
    """Bytes."""
    kind: str
    """For people; empty if unknown."""


def recovered_files(directory: Path) -> list[RecoveredFile]:
    """Describe all files below a directory, by path. Blocking.

    Raises:
        OSError: as of the disk.
    """
    return [
        RecoveredFile(str(path.relative_to(directory)), path.stat().st_size, kind_of(path))
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]


def kind_of(path: Path) -> str:
    """Return a file's kind, for people; empty if unknown. Blocking.

    Raises:
        OSError: as of the disk.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return next((kind for holds, kind in _KINDS if holds(path.name, head)), "")


_Test = Callable[[str, bytes], bool]
_KINDS: tuple[tuple[_Test, str], ...] = (
    (lambda _, head: head == _SQLITE, "SQLite database"),
    (lambda _, head: head.startswith(_WAL), "SQLite write-ahead log: keep it beside its database"),
    (lambda name, _: name.endswith(".sst"), "RocksDB table"),
    (lambda name, _: name.startswith("MANIFEST-"), "RocksDB manifest"),
    (lambda name, _: name == "CURRENT", "RocksDB: names the manifest"),
    (lambda name, _: name.startswith("OPTIONS-"), "RocksDB options"),
    (lambda name, _: name == "IDENTITY", "RocksDB identity"),
    (lambda name, _: name.endswith(".log"), "RocksDB write-ahead log"),
    (lambda name, head: name.endswith(".json") and head[:1] in (b"{", b"["), "JSON"),
)


@click.command("recover")
@click.argument("shard")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Where the files go: a directory that is empty, or is not there yet.",
)
@click.option(
    "--backup",
    type=click.IntRange(min=0),
    help="Begin from this backup of the hints instead of the primary ones; 0 is the newest.",
)
@connection_options
def recover_shard(connection: Connection, shard: str, directory: Path, backup: int | None) -> None:
    """Write a shard's files as its recovery log has them.

    The log is played to its end as of now, and nothing is written to it: a primary goes on undisturbed. Use the files
    to look into a shard's state, or as a copy of it.

    \b
    Examples:
      shardctl shards recover flights-000 --dir /tmp/flights-000
      shardctl shards recover flights-000 --dir older --backup 1
    """
    target = directory.absolute()

    async def work() -> None:
        _require_empty(target)
        async with connection.shards() as client:
            hints = await _hints_of(client, shard, backup)
        # Beside the target, which is changed only after everything has succeeded.
        staging = target.parent / f".{target.name}.{secrets.token_hex(4)}"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            recovered = await _play(connection, hints, staging)
            await asyncio.to_thread(_move_into_place, staging, target)
        finally:
            await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
        files = await asyncio.to_thread(recovered_files, target)
        _print_files(files)
        say(
            f"recovered {counted(len(files), 'file')} of shard {shard} into {directory}: "
            f"{recovered.log} up to byte {recovered.head}, of which nothing was changed"
        )

    run_command(work())


def _require_empty(target: Path) -> None:
    """Refuse a target that is not an empty directory, before anything is done."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ValidationError("--dir", f"expected a directory, or nothing, at {target}")
    if not target.exists():
        return
    if any(target.iterdir()):
        raise ValidationError(
            "--dir", f"expected an empty directory, and {target} is not; nothing was done"
        )
    if target.is_mount():
        raise ValidationError("--dir", f"{target} is a mount point; name a directory in it")


async def _hints_of(client: ShardClient, shard_id: str, backup: int | None) -> FSMHints:
    """Return the hints to start from.

    Raises:
        ShardNotFoundError: there is no such shard.
        ValidationError: the shard has no recovery log, or no such backup.
    """
    listing = await client.list(selector(label_set((ID, shard_id))))
    if not listing.shards:
        raise ShardNotFoundError(shard_id)
    spec = listing.shards[0].spec
    if not has_recovery_log(spec):
        raise ValidationError("SHARD", f"shard {shard_id} has no recovery log: nothing to recover")
    stored = _stored(await client.get_hints(shard_id))
    if backup is None:
        return stored.picked(recovery_log_of(spec))
    found = stored.backups[backup] if backup < len(stored.backups) else None
    if found is None:
        held = [str(number) for number, each in enumerate(stored.backups) if each is not None]
        raise ValidationError(
            "--backup", f"expected one of {', '.join(held) or 'none'}, got {backup}"
        )
    return found


def _stored(answer: GetHintsResponse) -> StoredHints:
    def of(each: GetHintsResponse.ResponseHints) -> FSMHints | None:
        return each.hints if each.HasField("hints") else None

    return StoredHints(
        primary=of(answer.primary_hints), backups=tuple(map(of, answer.backup_hints))
    )


async def _play(connection: Connection, hints: FSMHints, staging: Path) -> Recovered:
    async with connection.journals() as journals:
        # Otherwise the player's first error for a missing log would be that it cannot append to it.
        await journals.get(hints.log)
        player = Player(journals, hints, staging)
        player.stop_at_head()
        with progress_display(f"playing {hints.log}", Unit.BYTES) as display:
            async with TaskGroup() as group:
                playing = group.start_soon(player.run(), name=f"play {hints.log}")
                while not playing.done():
                    await asyncio.wait({playing}, timeout=LOOK_SECONDS)
                    progress = player.progress
                    display.show(progress.played_bytes, total_bytes(progress))
            return playing.result()


def _move_into_place(staging: Path, target: Path) -> None:
    """Rename the directory; this fails if the target was filled in the meantime."""
    try:
        staging.rename(target)
    except OSError as error:
        raise ValidationError(
            "--dir", f"{target} cannot be replaced ({error.strerror}); it was left as it is"
        ) from error


def _print_files(files: list[RecoveredFile]) -> None:
    print_table(
        ["FILE", "SIZE", "WHAT IT IS"],
        [[each.path, decimal(each.length), each.kind] for each in files],
    )
