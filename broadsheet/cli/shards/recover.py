"""`shardctl shards recover`: write a shard's files as its recovery log has them."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from pathlib import Path

import click
from rich.filesize import decimal

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.progress import Unit, progress_display
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.shards.recovered_files import recovered_files
from broadsheet.cli.shards.selection import shard_of
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.recoverylog.hints import StoredHints, has_recovery_log, recovery_log_of
from broadsheet.consumer.recoverylog.playback import PlaybackProgress
from broadsheet.consumer.recoverylog.player import Player, Recovered
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import GetHintsResponse

LOOK_SECONDS = 0.1
"""Time between two looks at the progress."""


@command_options
class _RecoverOptions:
    shard: ShardId
    directory: Path = option(
        "Where the files go: a directory that is empty, or is not there yet.",
        "--dir",
        type=click.Path(path_type=Path, file_okay=False),
        required=True,
    )
    backup: int | None = option(
        "Begin from this backup of the hints instead of the primary ones; 0 is the newest.",
        type=click.IntRange(min=0),
    )


@cluster_command("recover", _RecoverOptions)
async def recover_shard(connection: Connection, options: _RecoverOptions) -> None:
    """Write a shard's files as its recovery log has them.

    The log is played to its end as of now, and nothing is written to it: a primary goes on undisturbed. Use the files
    to look into a shard's state, or as a copy of it.

    \b
    Examples:
      shardctl shards recover flights-000 --dir /tmp/flights-000
      shardctl shards recover flights-000 --dir older --backup 1
    """
    target = options.directory.absolute()
    _require_empty(target)
    async with connection.shards() as client:
        hints = await _hints_of(client, options.shard, options.backup)
    # Beside the target, which is changed only after everything has succeeded.
    staging = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        recovered = await _play(connection, hints, staging)
        await asyncio.to_thread(_move_into_place, staging, target)
    finally:
        await asyncio.to_thread(shutil.rmtree, staging, ignore_errors=True)
    files = await asyncio.to_thread(recovered_files, target)
    print_table(
        ["FILE", "SIZE", "WHAT IT IS"],
        [[each.path, decimal(each.length), each.kind] for each in files],
    )
    say(
        f"recovered {counted(len(files), 'file')} of shard {options.shard} into {options.directory}: "
        f"{recovered.log} up to byte {recovered.head}, of which nothing was changed"
    )


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
    spec = (await shard_of(client, shard_id)).spec
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


def total_bytes(progress: PlaybackProgress) -> int:
    """Return the bytes to play, as far as is known: hints may leave some of the rest out."""
    return progress.played_bytes + progress.behind_bytes


def _move_into_place(staging: Path, target: Path) -> None:
    """Rename the directory; this fails if the target was filled in the meantime."""
    try:
        staging.rename(target)
    except OSError as error:
        raise ValidationError(
            "--dir", f"{target} cannot be replaced ({error.strerror}); it was left as it is"
        ) from error
