"""`shardctl leases`: list, evict, export, import."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from broadsheet.cli.command import run_command
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.output.documents import OutputFormat, format_option, print_fields
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.specs.files import read_text
from broadsheet.leases.addresses import StoreAddress, is_store_address, parse_store_address
from broadsheet.leases.codec import encode
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.lease_rows import LEASE_COLUMNS, lease_row, lease_states, state_of
from broadsheet.leases.migration.export_file import export_lines, read_export
from broadsheet.leases.migration.layouts import LAYOUTS
from broadsheet.leases.migration.merge import below, said
from broadsheet.leases.migration.plan import (
    Action,
    MigrationStep,
    carry_out,
    plan_import,
    records_of,
)
from broadsheet.leases.opening import existing_store, missing_file, open_store
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import RecordStore
from broadsheet.runtime.errors import ValidationError

LOG_LEVEL = "warning"
"""Records that cannot be read are left out, with a warning, which the user who moves records must see."""

# Sources and targets of the `leases` commands: stores, and exported files.


async def records_from(text: str) -> tuple[LeaseRecord, ...]:
    """Return the records of a store, or of a file; `-` is standard input.

    Raises:
        ValidationError: there is neither, or the file cannot be read.
    """
    if is_store_address(text):
        async with existing_store(parse_store_address(text)) as store:
            return tuple(found.record for found in await records_of(store))
    return _records_in(text)


def _records_in(text: str) -> tuple[LeaseRecord, ...]:
    try:
        return read_export(*read_text(Path(text), option="from"))
    except ValidationError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        problem = f"{text} is no file, and no store (shardctl leases --help shows addresses)"
        raise ValidationError("from", problem) from error


def lease_fields(found: Versioned, *, is_free: bool | None) -> dict[str, object]:
    """Return a lease for programs: its record's fields, and `free`, which is null if it was not watched."""
    record = found.record
    return {
        **dict.fromkeys(("key", "owner", "handoff_from", "claim", "checkpoint", "pending")),
        **json.loads(encode(replace(record, attrs={}, write_id=""))),
        "epoch": record.epoch,
        "counter": record.counter,
        "checkpoint": _position_fields(record.checkpoint),
        "pending": _position_fields(record.pending),
        "parents": sorted(record.parents),
        "attrs": {name: json.loads(text) for name, text in record.attrs.items()},
        "state": state_of(found, is_free=is_free),
        "free": is_free,
    }


def action_row(action: Action) -> list[str]:
    """Return an action's cells: key, what, checkpoint before, checkpoint after, note."""
    there = None if action.before is None else action.before.record.checkpoint
    after = action.after.checkpoint if action.after is not None else there
    return [action.key, action.step.value, said(there), said(after), note_of(action)]


def action_fields(action: Action) -> dict[str, object]:
    """Return an action's fields, for programs."""
    there = None if action.before is None else action.before.record.checkpoint
    return {
        "key": action.key,
        "step": action.step.value,
        "checkpoint_there": _position_fields(there),
        "checkpoint_wanted": _position_fields(action.wanted.checkpoint),
        "changed": list(action.changed),
        "conflicts": list(action.conflicts),
        "unseen": list(action.unseen),
    }


def counts_of(actions: Sequence[Action]) -> Mapping[MigrationStep, int]:
    """Return the number of actions of each step."""
    return {step: sum(action.step is step for action in actions) for step in MigrationStep}


def note_of(action: Action) -> str:
    """Return the note for people about an action."""
    if action.step is MigrationStep.CONFLICT:
        return "; ".join(action.conflicts)
    notes = [f"not seen there: {what}" for what in action.unseen]
    if action.step is MigrationStep.UPDATE:
        notes.insert(0, f"changes {', '.join(action.changed)}")
    return "; ".join(notes)


def _position_fields(position: Position | None) -> dict[str, object] | None:
    if position is None:
        return None
    fields: dict[str, object] = {"seq": position.seq, "sub": position.sub}
    return fields if position.offset is None else fields | {"offset": position.offset}


# `shardctl leases import`: a dry run, or the import itself with --yes.LOG_LEVEL = "warning"
"""Records that cannot be read are left out, with a warning, which the user who moves records must see."""


@click.command("import", short_help="Move leases and checkpoints into another store.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
@click.option(
    "--owners",
    is_flag=True,
    help="Move owners too; without it, workers on TO acquire the leases again.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also where TO is further, or says something else: checkpoints may go back.",
)
@click.option(
    "--key-prefix",
    default="",
    show_default=False,
    help="Put this before each key, e.g. NAMESPACE/HUB/GROUP/ for Azure's own event processors.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
def import_leases(
    source: str,
    target: str,
    yes: bool,
    owners: bool,
    force: bool,
    key_prefix: str,
    output: OutputFormat,
) -> None:
    """Move leases and checkpoints from a store, or an exported file, to another store.

    FROM stays as it is. A checkpoint of TO never goes back, what somebody holds there is left alone, and leases that
    only TO has stay. Nothing is done without --yes; once done, the same again does nothing. Stop the workers of FROM
    first: what they commit later is not moved.

    \b
    Examples:
      shardctl leases import 'dynamodb:orders?layout=kcl-java' etcd:/orders
      shardctl leases import orders.jsonl etcd:/orders --yes
      shardctl leases import 'azblob:hosts?layout=eph' etcd:/clicks --yes
    """

    async def work() -> None:
        address = parse_store_address(target)
        if is_store_address(source) and parse_store_address(source) == address:
            raise ValidationError("TO", f"expected another store than FROM, got {address.text}")
        wanted = [below(key_prefix, record) for record in await records_from(source)]
        actions, others = await _imported(wanted, address, yes=yes, owners=owners, force=force)
        if output is not OutputFormat.TABLE:
            print_fields({"leases": list(map(action_fields, actions))}, output)
        else:
            print_table(["KEY", "STEP", "THERE", "THEN", "NOTE"], list(map(action_row, actions)))
        _sum_up(actions, wanted, others, yes=yes)

    run_command(work(), log_level=LOG_LEVEL)


async def _imported(
    wanted: Sequence[LeaseRecord], address: StoreAddress, *, yes: bool, owners: bool, force: bool
) -> tuple[tuple[Action, ...], int]:
    """Return the actions, done or planned, and the number of leases that only the target has."""
    if not yes and missing_file(address) is not None:
        return _planned(wanted, (), address, owners=owners, force=force)
    async with open_store(address) as store:
        if yes:
            await store.create_store()
        there = await records_of(store) if await store.exists() else ()
        actions, others = _planned(wanted, there, address, owners=owners, force=force)
        return (await carry_out(store, actions) if yes else actions), others


def _planned(
    wanted: Sequence[LeaseRecord],
    there: Sequence[Versioned],
    address: StoreAddress,
    *,
    owners: bool,
    force: bool,
) -> tuple[tuple[Action, ...], int]:
    by_key = {found.record.key: found for found in there}
    layout = LAYOUTS[address.layout]
    actions = plan_import(wanted, by_key, layout, owners=owners, force=force)
    return actions, len(by_key.keys() - {action.key for action in actions})


def _sum_up(
    actions: Sequence[Action], wanted: Sequence[LeaseRecord], others: int, *, yes: bool
) -> None:
    counts = counts_of(actions)
    would = "" if yes else "dry run: would "
    verbs = ("created", "updated") if yes else ("create", "update")
    say(
        f"{would}{verbs[0]} {counts[MigrationStep.CREATE]}, {verbs[1]} {counts[MigrationStep.UPDATE]};"
        f" {counts[MigrationStep.SAME]} the same, {counted(counts[MigrationStep.CONFLICT], 'conflict')}"
        + ("" if yes else "; do it with --yes")
    )
    if others:
        say(f"{counted(others, 'lease')} only there: left alone")
    owned = sum(record.holder is not None for record in wanted)
    if owned:
        say(
            f"{counted(owned, 'lease')} of FROM had an owner: what it commits from now on stays there"
        )
    if counts[MigrationStep.CONFLICT]:
        raise click.ClickException(
            f"{counts[MigrationStep.CONFLICT]} of {counted(len(actions), 'lease')} not imported: see the conflicts"
        )


@click.command("list", short_help="List leases, their owners and checkpoints.")
@click.argument("store")
@click.option("--owner", help="Only what this worker owns.")
@click.option(
    "--watch",
    "watch_seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Look twice, so far apart: an owner that did not move is gone. Give the length of a lease. "
    "Not needed where the store says who lives (etcd, and the layouts eph and vmware-go).",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
def list_leases(
    store: str, owner: str | None, watch_seconds: float | None, output: OutputFormat
) -> None:
    """List leases with their owners and checkpoints.

    \b
    Examples:
      shardctl leases list etcd:/my-application
      shardctl leases list 'dynamodb:orders?layout=kcl-java' --watch 10
      shardctl leases list sql:sqlite:////var/lib/leases.db -o json
    """

    async def work() -> None:
        async with existing_store(parse_store_address(store)) as opened:
            told = await lease_states(
                opened, parse_store_address(store).layout, watch_seconds=watch_seconds
            )
        found = [(each, is_free) for each, is_free in told if owner in (None, each.record.owner)]
        if output is not OutputFormat.TABLE:
            fields = [lease_fields(each, is_free=is_free) for each, is_free in found]
            print_fields({"leases": fields}, output)
            return
        print_table(LEASE_COLUMNS, [lease_row(each, is_free=is_free) for each, is_free in found])
        if not found:
            say("there are no leases" if owner is None else f"{owner} owns no leases")

    run_command(work(), log_level=LOG_LEVEL)


@click.command("evict")
@click.argument("store")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--owner", help="Only what this worker owns; without KEYs, all that it owns.")
@click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
def evict_leases(
    store: str, keys: tuple[str, ...], owner: str | None, yes: bool, output: OutputFormat
) -> None:
    """Take leases from their owners.

    Checkpoints stay. An owner that lives learns of it at its next write, and may take the lease again; in a hand-off
    the next owner has it then. Nothing is done without --yes.

    \b
    Examples:
      shardctl leases evict etcd:/my-application shardId-000000000007
      shardctl leases evict etcd:/my-application --owner host-1 --yes
    """

    async def work() -> None:
        if not keys and owner is None:
            raise ValidationError("KEY", "expected KEYs, or --owner, or both")
        async with existing_store(parse_store_address(store)) as opened:
            chosen = await _chosen(opened, keys, owner)
            rows = [await _evicted(opened, each, yes=yes) for each in chosen]
        columns = ("key", "owner", "result")
        if output is not OutputFormat.TABLE:
            fields = [dict(zip(columns, row, strict=True)) for row in rows]
            print_fields({"leases": fields}, output)
        else:
            print_table([column.upper() for column in columns], rows)
        count = sum(row[-1] in ("evict", "evicted") for row in rows)
        if yes:
            say(f"evicted {counted(count, 'lease')} of {len(rows)}")
        else:
            say(f"dry run: would evict {counted(count, 'lease')} of {len(rows)}; do it with --yes")

    run_command(work(), log_level=LOG_LEVEL)


@click.command("export")
@click.argument("store")
def export_leases(store: str) -> None:
    """Print all leases as JSON lines, for `shardctl leases import`.

    Nothing is changed. What workers commit meanwhile may be in it or not, lease by lease.

    \b
    Examples:
      shardctl leases export 'dynamodb:orders?layout=kcl-java' > orders.jsonl
      shardctl leases export etcd:/my-application | jq .record.checkpoint
    """

    async def work() -> None:
        async with existing_store(parse_store_address(store)) as opened:
            records = [found.record for found in await records_of(opened)]
        for line in export_lines(records, origin=parse_store_address(store).text):
            click.echo(line, nl=False)
        say(f"exported {counted(len(records), 'lease')}")

    run_command(work(), log_level=LOG_LEVEL)


async def _chosen(
    store: RecordStore, keys: Sequence[str], owner: str | None
) -> Sequence[Versioned]:
    """Return the leases that were named.

    Raises:
        NothingSelectedError: there is none of such a key.
    """
    if not keys:
        return [found async for found in store.scan(owner)]
    chosen = []
    for key in dict.fromkeys(keys):
        found = await store.get(key)
        if found is None:
            raise NothingSelectedError("KEY", f"there is no lease {key}")
        if owner in (None, found.record.owner):
            chosen.append(found)
    return chosen


async def _evicted(store: RecordStore, found: Versioned, *, yes: bool) -> list[Any]:
    """Return a row: key, owner, what was done or would be."""
    key, owner = found.record.key, found.record.owner
    if owner is None:
        return [key, "-", "has no owner"]
    if not yes:
        return [key, owner, "evict"]
    done = await LeaseManager(store).evict(found)
    return [key, owner, "evicted" if done is not None else "changed hands meanwhile"]
