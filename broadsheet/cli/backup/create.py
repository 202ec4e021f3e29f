"""`shardctl backup create`: write what a cluster is to a file."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from broadsheet.cli.backup.file import Backup, SavedShard, backup_lines
from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import store_named
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.output.messages import counted, say
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.consumer.recoverylog.hints import has_recovery_log
from broadsheet.leases.migration.plan import records_of
from broadsheet.leases.opening import existing_store
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

CALLS_MAX: Final = 32
"""Requests for hints at once."""


@command_options
class CreateOptions:
    """Options of `create`."""

    file: Path = argument(type=click.Path(path_type=Path, allow_dash=True, dir_okay=False))
    lease_stores: tuple[str, ...] = option(
        "Also the leases of this store: an address as of shardctl leases. May be repeated.",
        "--lease-store",
        multiple=True,
        metavar="STORE",
    )


@cluster_command("create", CreateOptions)
async def create_backup(connection: Connection, options: CreateOptions) -> None:
    """Write journals, shards, recovery hints and leases to FILE.

    FILE is replaced once all is written; - is standard output. What journals and stores hold is not in it.

    \b
    Examples:
      shardctl backup create cluster.jsonl
      shardctl backup create cluster.jsonl --lease-store 'dynamodb:orders'
      shardctl backup create - | gzip > cluster.jsonl.gz
    """
    addresses = [store_named(each, "--lease-store") for each in options.lease_stores]
    backup = Backup()
    async with connection.shards() as shards:
        specs = [listed.spec for listed in (await shards.list()).shards]
        backup.shards += await _with_hints(shards, specs)
    # After the hints, which name logs: a journal that is made in between is missing less than one that is gone.
    async with connection.journals() as journals:
        backup.journals += [listed.spec for listed in (await journals.list()).journals]
    for address in addresses:
        async with existing_store(address) as opened:
            backup.leases[address.text] = [each.record for each in await records_of(opened)]
    lines = backup_lines(backup, written_at=datetime.now(UTC))
    await asyncio.to_thread(_write, options.file, lines)
    say(f"saved {summary_of(backup)}")


async def _with_hints(client: ShardClient, specs: Iterable[ShardSpec]) -> list[SavedShard]:
    """Return each shard with its hints, but for those that were deleted meanwhile."""
    slots = asyncio.Semaphore(CALLS_MAX)

    async def saved(spec: ShardSpec) -> SavedShard | None:
        if not has_recovery_log(spec):
            return SavedShard(spec)
        async with slots:
            try:
                return SavedShard(spec, await _hints_of(client, spec.id))
            except ShardNotFoundError:
                return None

    found = await asyncio.gather(*map(saved, specs))
    return [each for each in found if each is not None]


async def _hints_of(client: ShardClient, shard_id: str) -> FSMHints | None:
    """Return the hints that a recovery would pick now."""
    answer = await client.get_hints(shard_id)
    for each in (answer.primary_hints, *answer.backup_hints):
        if each.HasField("hints"):
            return each.hints
    return None


def _write(file: Path, lines: Iterable[str]) -> None:
    """Write a file that is whole or not there.

    Raises:
        ValidationError: it cannot be written.
    """
    if str(file) == "-":
        sys.stdout.writelines(lines)
        sys.stdout.flush()
        return
    partial = file.with_name(f".{file.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as target:
            # Specs may hold what is not for everybody.
            os.fchmod(target.fileno(), 0o600)
            target.writelines(lines)
            target.flush()
            os.fsync(target.fileno())
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ValidationError("FILE", f"cannot write {file}: {error.strerror}") from error


def summary_of(backup: Backup) -> str:
    """Return what a backup holds, for people."""
    hints = sum(each.hints is not None for each in backup.shards)
    leases = sum(map(len, backup.leases.values()))
    parts = [counted(len(backup.journals), "journal"), counted(len(backup.shards), "shard")]
    parts[-1] += f" ({hints} with hints)"
    return ", ".join([*parts, *([counted(leases, "lease")] if backup.leases else [])])
