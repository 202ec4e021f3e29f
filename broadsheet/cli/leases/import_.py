"""`shardctl leases import`: leases and checkpoints of a store, or of an exported file, into another store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from broadsheet.cli.leases.command import store_command
from broadsheet.cli.leases.documents import position_fields
from broadsheet.cli.names import store_named
from broadsheet.cli.options import YesOrDryRun, argument, command_options, flag, option
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.text_files import read_text
from broadsheet.leases.addresses import StoreAddress, is_store_address
from broadsheet.leases.migration.export_file import read_export
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
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.runtime.errors import ValidationError


@command_options
class _ImportOptions:
    source: str = argument(metavar="FROM")
    target: str = argument(metavar="TO")
    yes: YesOrDryRun
    owners: bool = flag("Move owners too; without it, workers on TO acquire the leases again.")
    force: bool = flag("Also where TO is further, or says something else: checkpoints may go back.")
    key_prefix: str = option(
        "Put this before each key, e.g. NAMESPACE/HUB/GROUP/ for Azure's own event processors.",
        default="",
        show_default=False,
    )
    output: Output


@store_command(
    "import", _ImportOptions, short_help="Move leases and checkpoints into another store."
)
async def import_leases(options: _ImportOptions) -> None:
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
    address, source = store_named(options.target, "TO"), options.source
    if is_store_address(source) and store_named(source, "FROM") == address:
        raise ValidationError("TO", f"expected another store than FROM, got {address.text}")
    wanted = [below(options.key_prefix, record) for record in await _records_from(source)]
    actions, others = await _imported(wanted, address, options)
    columns = ["KEY", "STEP", "THERE", "THEN", "NOTE"]
    items, rows = map(_action_fields, actions), map(_action_row, actions)
    print_list(options.output, "leases", items, columns, rows)
    _sum_up(actions, wanted, others, yes=options.yes)


async def _records_from(text: str) -> tuple[LeaseRecord, ...]:
    """Return the records of a store, or of a file; `-` is standard input.

    Raises:
        ValidationError: there is neither, or the file cannot be read.
    """
    if is_store_address(text):
        async with existing_store(store_named(text, "FROM")) as store:
            return tuple(found.record for found in await records_of(store))
    return _records_in(text)


def _records_in(text: str) -> tuple[LeaseRecord, ...]:
    try:
        return read_export(*read_text(Path(text), option="FROM"))
    except ValidationError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        problem = f"{text} is no file, and no store (shardctl leases --help shows addresses)"
        raise ValidationError("FROM", problem) from error


async def _imported(
    wanted: Sequence[LeaseRecord], address: StoreAddress, options: _ImportOptions
) -> tuple[tuple[Action, ...], int]:
    """Return the actions, done or planned, and the number of leases that only the target has."""
    if not options.yes and missing_file(address) is not None:
        return _planned(wanted, (), address, options)
    async with open_store(address) as store:
        if options.yes:
            await store.create_store()
        there = await records_of(store) if await store.exists() else ()
        actions, others = _planned(wanted, there, address, options)
        return (await carry_out(store, actions) if options.yes else actions), others


def _planned(
    wanted: Sequence[LeaseRecord],
    there: Sequence[Versioned],
    address: StoreAddress,
    options: _ImportOptions,
) -> tuple[tuple[Action, ...], int]:
    by_key = {found.record.key: found for found in there}
    layout = LAYOUTS[address.layout]
    actions = plan_import(wanted, by_key, layout, owners=options.owners, force=options.force)
    return actions, len(by_key.keys() - {action.key for action in actions})


def _action_row(action: Action) -> list[str]:
    """Return an action's cells: key, what, checkpoint before, checkpoint after, note."""
    there = None if action.before is None else action.before.record.checkpoint
    after = action.after.checkpoint if action.after is not None else there
    return [action.key, action.step.value, said(there), said(after), _note_of(action)]


def _action_fields(action: Action) -> dict[str, object]:
    """Return an action's fields, for programs."""
    there = None if action.before is None else action.before.record.checkpoint
    return {
        "key": action.key,
        "step": action.step.value,
        "checkpoint_there": position_fields(there),
        "checkpoint_wanted": position_fields(action.wanted.checkpoint),
        "changed": list(action.changed),
        "conflicts": list(action.conflicts),
        "unseen": list(action.unseen),
    }


def _note_of(action: Action) -> str:
    """Return the note for people about an action."""
    if action.step is MigrationStep.CONFLICT:
        return "; ".join(action.conflicts)
    notes = [f"not seen there: {what}" for what in action.unseen]
    if action.step is MigrationStep.UPDATE:
        notes.insert(0, f"changes {', '.join(action.changed)}")
    return "; ".join(notes)


def _sum_up(
    actions: Sequence[Action], wanted: Sequence[LeaseRecord], others: int, *, yes: bool
) -> None:
    counts = _counts_of(actions)
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


def _counts_of(actions: Sequence[Action]) -> Mapping[MigrationStep, int]:
    """Return the number of actions of each step."""
    return {step: sum(action.step is step for action in actions) for step in MigrationStep}
