"""`shardctl shards prune`, `rewind`, `recover` and `reset-source`: what logs, hints and sources need of an operator."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.filesize import decimal

from broadsheet.cli.connection import Connection, complete_shards, connection_options, run_command
from broadsheet.cli.output import (
    NothingSelectedError,
    OutputFormat,
    counted,
    format_option,
    print_message,
    print_messages,
    print_table,
    say,
)
from broadsheet.cli.progress import Unit, progress_display
from broadsheet.cli.specs_file import parse_duration
from broadsheet.consumer.client import RecoveryClient, ShardClient
from broadsheet.consumer.errors import (
    PruneIncompleteError,
    ShardNotFoundError,
    SourceResetRefusedError,
)
from broadsheet.consumer.recoverylog.hints import StoredHints, has_recovery_log, recovery_log_of
from broadsheet.consumer.recoverylog.ownership import is_owner_path
from broadsheet.consumer.recoverylog.playback import PlaybackProgress
from broadsheet.consumer.recoverylog.player import Player, Recovered
from broadsheet.consumer.stores.store_record import RECORD
from broadsheet.journals.guard import epoch_text
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.labels import ID, label_set, parse_selector, selector, selector as selector_of
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.recovery_pb2 import FragmentTally, HintsSummary, PrunedLog, Rewind, SourceReset
from broadsheet.wire.shard_pb2 import GetHintsResponse, ListResponse, ReplicaStatus


@click.command("prune")
@click.option("--dry-run", is_flag=True, help="Print what would go and what stays; change nothing.")
@click.option(
    "--delay",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Remove only what a prune found dead at least so long ago, or, where backups of hints stand for it, what is "
    "older by itself; 0s: at once.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def prune_shards(connection: Connection, dry_run: bool, delay: str, output: str) -> None:
    """Remove fragments that no recovery needs from recovery logs.

    The hints of all shards of the cluster, backups too, say what is needed; there is nothing to select. What is in
    doubt stays. What a prune finds dead for the first time waits for --delay, so run it regularly; a dry run does not
    start the wait.

    \b
    Examples:
      shardctl shards prune --dry-run
      shardctl shards prune
      shardctl shards prune --delay 1h -o json
    """

    async def work() -> None:
        delay_seconds = parse_duration(delay, "--delay").ToNanoseconds() / 1e9
        logs: list[PrunedLog] = []
        try:
            async with connection.recovery() as client:
                ask = client.plan_prune if dry_run else client.prune
                async for log in ask(delay_seconds=delay_seconds):
                    logs.append(log)  # noqa: PERF401 - what came before an error counts
        finally:
            # Also after an interrupted prune: the fragments that it removed are gone.
            if output != OutputFormat.TABLE.value:
                print_messages("logs", logs, OutputFormat(output))
            else:
                _print_logs(logs, dry_run=dry_run)
            _sum_up(logs, dry_run=dry_run)
        _require_complete(logs)

    run_command(work())


@click.command("rewind")
@click.argument("shard", shell_complete=complete_shards)
@click.option(
    "--backup",
    type=click.IntRange(min=0),
    help="Which backup of the hints to recover from; 0 is the newest.",
)
@click.option(
    "--whole-log",
    is_flag=True,
    help="Instead of --backup: drop all hints, and recover from the beginning of the log, if it is still there.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Also if the shard has a primary: all its replicas are taken away in the same transaction.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def rewind_shard(
    connection: Connection,
    shard: str,
    *,
    backup: int | None,
    whole_log: bool,
    dry_run: bool,
    force: bool,
    output: str,
) -> None:
    """Make a shard recover from a backup of its hints, or from its whole log.

    For a shard whose primary hints are unusable. The backup and the primary hints change places, so the same command
    again undoes it. Hints that cannot be read are set aside; with --whole-log all are.

    \b
    Examples:
      shardctl shards hints flights-000              # what there is
      shardctl shards rewind flights-000 --backup 0 --dry-run
      shardctl shards rewind flights-000 --backup 0
      shardctl shards rewind flights-000 --whole-log # where no backup can be read
      shardctl shards unassign -l id=flights-000 --failed
    """

    async def work() -> None:
        if whole_log == (backup is not None):
            raise ValidationError("--backup", "expected either --backup or --whole-log")
        async with connection.recovery() as client:
            ask = client.plan_rewind if dry_run else client.rewind
            done = await ask(shard, backup=backup, force=force)
        if output != OutputFormat.TABLE.value:
            print_message(done, OutputFormat(output))
        else:
            _print_rewind(done, backup)
        if dry_run:
            say(f"dry run: as of revision {done.revision}; nothing was changed")
        else:
            target = "the beginning of its log" if backup is None else f"backup {backup}"
            say(f"rewound shard {shard} to {target} at revision {done.revision}")
        _say_what_next(shard, done, dry_run=dry_run)

    run_command(work())


def _print_logs(logs: Sequence[PrunedLog], *, dry_run: bool) -> None:
    print_table(
        [
            "LOG",
            "NEEDED",
            "UNPERSISTED",
            "QUARANTINED",
            "WOULD GO" if dry_run else "REMOVED",
            "NOTE",
        ],
        [
            [
                log.log,
                *(
                    "" if log.spared else _tally(tally)
                    for tally in (log.needed, log.unpersisted, log.quarantined, log.removed)
                ),
                _note(log),
            ]
            for log in logs
        ],
    )


def _note(log: PrunedLog) -> str:
    if log.spared:
        return f"left alone: {log.spared}"
    notes: list[str] = []
    if log.quarantined_until:
        until = datetime.fromtimestamp(log.quarantined_until, UTC)
        notes.append(f"the first quarantined may go {until:%Y-%m-%d %H:%M:%S}Z")
    if log.elsewhere.fragments:
        notes.append(f"{_tally(log.elsewhere)} dead in a store of the broker's: gazctl removes it")
    if log.failed.fragments:
        notes.append(f"not removed: {_tally(log.failed)}: {log.failure}")
    return "; ".join(notes)


def _sum_up(logs: Sequence[PrunedLog], *, dry_run: bool) -> None:
    removed = _sum([log.removed for log in logs])
    verb = "dry run: would remove" if dry_run else "removed"
    say(
        f"{verb} {counted(removed.fragments, 'fragment')}, {decimal(removed.bytes)}, "
        f"of {counted(len(logs), 'log')}"
    )


def _require_complete(logs: Sequence[PrunedLog]) -> None:
    failed = _sum([log.failed for log in logs])
    if failed.fragments:
        raise PruneIncompleteError(failed.fragments, failed.bytes)


def _sum(tallies: Sequence[FragmentTally]) -> FragmentTally:
    return FragmentTally(
        fragments=sum(tally.fragments for tally in tallies),
        bytes=sum(tally.bytes for tally in tallies),
    )


def _tally(tally: FragmentTally) -> str:
    return f"{tally.fragments} ({decimal(tally.bytes)})" if tally.fragments else "0"


def _print_rewind(done: Rewind, backup: int | None) -> None:
    target = ["the whole log", "", "0", ""] if backup is None else None
    rows = [[*(target or [f"backup {backup}", *_summary(done.restored)]), "recovered from next"]]
    if done.HasField("replaced"):
        rows.append(["primary", *_summary(done.replaced), f"kept at {done.kept_at}"])
    rows += [["", "", "", "", f"set aside at {key}"] for key in done.set_aside]
    print_table(["HINTS", "FILES", "FROM OFFSET", "TO SEQUENCE", "WHAT BECOMES OF THEM"], rows)


def _summary(hints: HintsSummary) -> list[str]:
    if hints.unreadable:
        return ["?", "?", f"? ({hints.unreadable})"]
    return [str(hints.files), str(hints.first_offset), str(hints.last_seq_no)]


def _say_what_next(shard: str, done: Rewind, *, dry_run: bool) -> None:
    if done.standbys:
        say(
            f"{', '.join(done.standbys)} stands by with what it has played: if it takes over, no hints are read; "
            "--force takes standbys away, too"
        )
    if done.unassigned:
        verb = "would be" if dry_run else "were"
        say(
            f"{', '.join(done.unassigned)} {verb} unassigned with it; the allocator assigns the shard anew "
            "(shardctl shards list)"
        )
    elif done.failed:
        say(f"next: shardctl shards unassign -l id={shard} --failed")
    else:
        say("it is recovered from these hints when it is next assigned")


# Recovery of a shard's files into a directory.

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
    (lambda name, _: is_owner_path(f"/{name}"), "names the shard that the log belongs to"),
    (lambda name, _: name == RECORD, "names the kind of store"),
    (lambda name, _: name.endswith(".log"), "RocksDB write-ahead log"),
    (lambda name, head: name.endswith(".json") and head[:1] in (b"{", b"["), "JSON"),
)


@click.command("recover")
@click.argument("shard", shell_complete=complete_shards)
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


# Sources that were replaced.

WRITE_HEAD = -1
HEAD = "head"


@click.command("reset-source")
@click.argument("shard", required=False, default="", shell_complete=complete_shards)
@click.option(
    "-l",
    "--selector",
    default="",
    show_default=False,
    help="Instead of SHARD: all failed shards that match.",
)
@click.option(
    "--journal",
    default="",
    show_default=False,
    help="The source; all sources of each shard if not given.",
)
@click.option(
    "--to-offset",
    required=True,
    metavar="0|head|N",
    help="Where to go on: 0 reads all that is there now, 'head' only what is written from now on.",
)
@click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
@connection_options
def reset_source(
    connection: Connection, shard: str, selector: str, journal: str, to_offset: str, yes: bool
) -> None:
    """Make a shard continue in a source that was replaced.

    For a shard that failed because a source does not hold what the shard has read of it: a journal that was deleted and
    applied again, or that has lost its end. A source that does hold it is left as it is. Messages that the shard has
    counted are not counted again if the same are in the journal that is there now.

    \b
    Examples:
      shardctl shards reset-source flights-000 --to-offset 0   # a dry run
      shardctl shards reset-source flights-000 --to-offset 0 --yes
      shardctl shards reset-source flights-000 --to-offset head \\
          --journal flights/part-000 --yes
      shardctl shards reset-source -l app=flights --to-offset head --yes
    """

    async def work() -> None:
        offset = _reset_offset(to_offset)
        async with connection.shards() as shards, connection.recovery() as recovery:
            wanted = [
                (listed.spec.id, source.journal)
                for listed in await _reset_targets(shards, shard, selector)
                for source in listed.spec.sources
                if journal in ("", source.journal)
            ]
            if not wanted:
                raise ValidationError(
                    "--journal", f"expected a source of the shard, got {journal!r}"
                )
            await _reset_all(recovery, wanted, offset, dry_run=not yes)

    run_command(work())


async def _reset_all(
    recovery: RecoveryClient, wanted: list[tuple[str, str]], offset: int, *, dry_run: bool
) -> None:
    """Reset the sources one by one; refusals are reported at the end, when the others are done."""
    rows: list[list[str]] = []
    refusals: list[SourceResetRefusedError] = []
    for shard_id, journal in wanted:
        ask = recovery.plan_reset_source if dry_run else recovery.reset_source
        try:
            done = await ask(shard_id, journal=journal, offset=offset)
        except SourceResetRefusedError as error:
            refusals.append(error)
        else:
            rows.append(_reset_row(shard_id, journal, done))
    print_table(["SHARD", "SOURCE", "GOES ON AT", "WRITE HEAD", "EPOCH", "UNASSIGNED"], rows)
    if dry_run:
        say(f"dry run: {counted(len(rows), 'source')} would be reset; --yes does it")
    else:
        say(f"{counted(len(rows), 'reset')} on file; the next primaries apply what is needed")
    for refusal in refusals[:-1]:
        say(str(refusal))
    if refusals:
        raise refusals[-1]


def _reset_row(shard_id: str, journal: str, done: SourceReset) -> list[str]:
    epoch = epoch_text(done.epoch if done.HasField("epoch") else None)
    return [
        shard_id,
        journal,
        str(done.offset),
        str(done.write_head),
        epoch,
        " ".join(done.unassigned),
    ]


async def _reset_targets(
    client: ShardClient, shard: str, selector: str
) -> list[ListResponse.Shard]:
    """Return the selected shards.

    Raises:
        ValidationError: none is, or it is not clear which.
    """
    if bool(shard) == bool(selector):
        raise ValidationError("SHARD", "expected either SHARD or --selector")
    if shard:
        found = list((await client.list(selector_of(label_set((ID, shard))))).shards)
        if not found:
            raise NothingSelectedError("SHARD", f"there is no shard {shard!r}")
        return found
    matching = (await client.list(parse_selector(selector))).shards
    found = [each for each in matching if _has_failed(each)]
    if not found:
        raise NothingSelectedError("--selector", f"no failed shard matches {selector!r}")
    return found


def _has_failed(listed: ListResponse.Shard) -> bool:
    return any(status.code == ReplicaStatus.FAILED for status in listed.status)


def _reset_offset(text: str) -> int:
    if text == HEAD:
        return WRITE_HEAD
    if not text.isdecimal():
        raise ValidationError("--to-offset", f"expected 0, head, or an offset, got {text!r}")
    return int(text)
