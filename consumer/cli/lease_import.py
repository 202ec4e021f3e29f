"""`shardctl leases import`: what it would do, and does with --yes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from allocator.errors import ValidationError
from consumer.cli.connection import run_command
from consumer.cli.lease_places import records_from
from consumer.cli.lease_rows import action_fields, action_row, counts_of
from consumer.cli.output import (
    OutputFormat,
    counted,
    format_option,
    print_fields,
    print_table,
    say,
)
from consumer.leasing.addresses import StoreAddress, is_store_address, parse_store_address
from consumer.leasing.core.record import LeaseRecord, Versioned
from consumer.leasing.migration.carrying_out import carry_out, records_of
from consumer.leasing.migration.layouts import LAYOUTS
from consumer.leasing.migration.merge import below
from consumer.leasing.migration.plan import Action, Step, plan_import
from consumer.leasing.opening import missing_file, open_store


@click.command("import", short_help="Move leases and checkpoints into another store.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
@click.option(
    "--owners",
    is_flag=True,
    help="Move owners too; without, whoever works on TO takes the leases anew.",
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
    output: str,
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
        if output != OutputFormat.TABLE.value:
            print_fields({"leases": list(map(action_fields, actions))}, OutputFormat(output))
        else:
            print_table(["KEY", "STEP", "THERE", "THEN", "NOTE"], list(map(action_row, actions)))
        _sum_up(actions, wanted, others, yes=yes)

    run_command(work())


async def _imported(
    wanted: Sequence[LeaseRecord], address: StoreAddress, *, yes: bool, owners: bool, force: bool
) -> tuple[tuple[Action, ...], int]:
    """Return what was done, or would be, and how many leases only the target has."""
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
        f"{would}{verbs[0]} {counts[Step.CREATE]}, {verbs[1]} {counts[Step.UPDATE]};"
        f" {counts[Step.SAME]} the same, {counted(counts[Step.CONFLICT], 'conflict')}"
        + ("" if yes else "; do it with --yes")
    )
    if others:
        say(f"{counted(others, 'lease')} only there: left alone")
    owned = sum(record.holder is not None for record in wanted)
    if owned:
        say(
            f"{counted(owned, 'lease')} of FROM had an owner: what it commits from now on stays there"
        )
    if counts[Step.CONFLICT]:
        raise click.ClickException(
            f"{counts[Step.CONFLICT]} of {counted(len(actions), 'lease')} not imported: see the conflicts"
        )
