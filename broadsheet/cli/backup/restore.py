"""`shardctl backup restore`: make a cluster what a file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import click

from broadsheet.allocator.ops import TXN_OPERATIONS_MAX
from broadsheet.cli.backup.create import summary_of
from broadsheet.cli.backup.file import SavedShard, read_backup
from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import BackupDiffersError
from broadsheet.cli.options import YesOrDryRun, argument, command_options
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.text_files import read_text
from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.leases.addresses import parse_store_address
from broadsheet.leases.migration.layouts import LAYOUTS
from broadsheet.leases.migration.plan import MigrationStep, carry_out, plan_import, records_of
from broadsheet.leases.opening import open_store
from broadsheet.leases.record import LeaseRecord
from broadsheet.wire import journal_pb2, shard_pb2
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import ShardSpec

SHARDS_PER_TXN: Final = TXN_OPERATIONS_MAX // 2
"""A shard may bring its hints along."""
NAMED_MAX: Final = 5
SpecT = TypeVar("SpecT", JournalSpec, ShardSpec)


@command_options
class RestoreOptions:
    """Options of `restore`."""

    file: Path = argument(type=click.Path(path_type=Path, allow_dash=True, dir_okay=False))
    yes: YesOrDryRun


@dataclass(frozen=True, slots=True)
class MissingSpecs(Generic[SpecT]):
    """Specs of a backup, set apart by what a cluster has of them."""

    missing: Sequence[SpecT]
    same: Sequence[str]
    """Names of those that are there."""


def difference(
    saved: Mapping[str, SpecT], present: Mapping[str, SpecT], *, what: str
) -> MissingSpecs[SpecT]:
    """Compare saved specs with those that are there, each by its name.

    Raises:
        BackupDiffersError: some are there with other specs: the cluster is not the one that was lost.
    """
    other = [name for name, spec in saved.items() if name in present and present[name] != spec]
    if other:
        named = ", ".join(other[:NAMED_MAX]) + (" …" if len(other) > NAMED_MAX else "")
        raise BackupDiffersError(
            f"{counted(len(other), what)} of the cluster differ from the backup: {named}. A restore changes nothing "
            "that is there: delete them first, or apply what you want of the backup by hand",
        )
    missing = [spec for name, spec in saved.items() if name not in present]
    same = [name for name in saved if name in present]
    return MissingSpecs(missing, same)


@cluster_command("restore", RestoreOptions)
async def restore_backup(connection: Connection, options: RestoreOptions) -> None:
    """Make journals, shards with their recovery hints, and leases as FILE has them.

    What is there already stays as it is; if it is not as in FILE, nothing is done. A restore that was interrupted is
    repeated. Nothing is done without --yes.

    \b
    Examples:
      shardctl backup restore cluster.jsonl          # a dry run
      shardctl backup restore cluster.jsonl --yes
    """
    text, name = read_text(options.file, option="FILE")
    # Not `splitlines`, because labels may hold characters that it takes for line ends.
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    backup = read_backup(lines, source=name)
    say(f"{name}: {summary_of(backup)}")
    async with connection.shards() as shards, connection.journals() as journals:
        present_journals = {each.spec.name: each.spec for each in (await journals.list()).journals}
        present_shards = {each.spec.id: each.spec for each in (await shards.list()).shards}
        of_journals = difference(
            {spec.name: spec for spec in backup.journals}, present_journals, what="journal"
        )
        of_shards = difference(
            {each.spec.id: each.spec for each in backup.shards}, present_shards, what="shard"
        )
        if options.yes:
            await _make_journals(journals, of_journals.missing)
            # Shards refer to journals, and their first recovery needs the hints: both come in one transaction.
            await _make_shards(shards, backup.shards, {spec.id for spec in of_shards.missing})
    rows = [
        ["journals", str(len(of_journals.missing)), str(len(of_journals.same)), ""],
        ["shards", str(len(of_shards.missing)), str(len(of_shards.same)), ""],
    ]
    for store, records in backup.leases.items():
        rows.append(await _restore_leases(store, records, yes=options.yes))
    print_table(["WHAT", "RESTORED" if options.yes else "MISSING", "THERE", "NOTE"], rows)
    if not options.yes:
        say("dry run: nothing was changed; --yes does it")


async def _make_journals(client: JournalClient, specs: Sequence[JournalSpec]) -> None:
    if specs:
        changes = [journal_pb2.ApplyRequest.Change(upsert=spec) for spec in specs]
        await client.apply(changes, batch_size=TXN_OPERATIONS_MAX)


async def _make_shards(client: ShardClient, saved: Sequence[SavedShard], missing: set[str]) -> None:
    changes = [
        shard_pb2.ApplyRequest.Change(upsert=each.spec, primary_hints=each.hints)
        for each in saved
        if each.spec.id in missing
    ]
    if changes:
        await client.apply(
            changes,
            batch_size=SHARDS_PER_TXN,
            on_applied=lambda count: (
                say(f"{count} of {len(changes)} shards") if len(changes) > SHARDS_PER_TXN else None
            ),
        )


async def _restore_leases(store: str, records: Sequence[LeaseRecord], *, yes: bool) -> list[str]:
    """Import leases into their store, as `shardctl leases import` does; return the row of the table."""
    address = parse_store_address(store)
    async with open_store(address) as opened:
        if yes:
            await opened.create_store()
        there = await records_of(opened) if await opened.exists() else ()
        by_key = {found.record.key: found for found in there}
        actions = plan_import(records, by_key, LAYOUTS[address.layout])
        if yes:
            actions = await carry_out(opened, actions)
    conflicts = [each for each in actions if each.step is MigrationStep.CONFLICT]
    note = f"{conflicts[0].key}: {'; '.join(conflicts[0].conflicts)}" if conflicts else ""
    same = sum(each.step is MigrationStep.SAME for each in actions)
    changed = len(actions) - same - len(conflicts)
    return [f"leases of {store}", str(changed), str(same + len(conflicts)), note]
