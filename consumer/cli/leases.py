"""`shardctl leases`: list, evict, export, import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from allocator.errors import ValidationError
from consumer.cli.connection import run_command
from consumer.cli.lease_import import import_leases
from consumer.cli.lease_places import existing_store
from consumer.cli.lease_rows import LEASE_COLUMNS, lease_fields, lease_row
from consumer.cli.lease_states import lease_states
from consumer.cli.logs import log_to_stderr
from consumer.cli.output import (
    OutputFormat,
    counted,
    format_option,
    print_fields,
    print_table,
    say,
)
from consumer.leasing.addresses import parse_store_address
from consumer.leasing.core.record import Versioned
from consumer.leasing.manager import LeaseManager
from consumer.leasing.migration.carrying_out import records_of
from consumer.leasing.migration.export_file import export_lines
from consumer.leasing.store import RecordStore


@click.group()
def leases() -> None:
    """Look at leases and checkpoints, and move them between stores.

    \b
    A store is one of
      etcd:/ROOT              ?endpoints=HOST:PORT,…  ca_file  cert_file  key_file
      sql:postgresql://…      ?table=NAME             sql:sqlite:////PATH
      dynamodb:TABLE          ?layout=native|kcl-java|vmware-go  region  endpoint
      azblob:CONTAINER        ?layout=native  prefix
                              ?layout=eph  group  prefix
                              ?layout=eventhubs  scope=NAMESPACE/HUB/GROUP

    \b
    Secrets are in the environment: ETCD_ADDRESS, ETCD_USER and ETCD_PASSWORD;
    PGPASSWORD; AWS' own variables and files; AZURE_STORAGE_CONNECTION_STRING,
    or the variable that connection_env=NAME names.
    """
    # A record that cannot be read is left out, with a warning; who moves records must see it.
    log_to_stderr("warning")


@leases.command("list", short_help="List leases, their owners and checkpoints.")
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
def list_leases(store: str, owner: str | None, watch_seconds: float | None, output: str) -> None:
    """List leases: who holds them, and how far their shards are processed.

    \b
    Examples:
      shardctl leases list etcd:/my-application
      shardctl leases list 'dynamodb:orders?layout=kcl-java' --watch 10
      shardctl leases list sql:sqlite:////var/lib/leases.db -o json
    """

    async def work() -> None:
        async with existing_store(store) as opened:
            told = await lease_states(
                opened, parse_store_address(store).layout, watch_seconds=watch_seconds
            )
        found = [(each, is_free) for each, is_free in told if owner in (None, each.record.owner)]
        if output != OutputFormat.TABLE.value:
            fields = [lease_fields(each, is_free=is_free) for each, is_free in found]
            print_fields({"leases": fields}, OutputFormat(output))
            return
        print_table(LEASE_COLUMNS, [lease_row(each, is_free=is_free) for each, is_free in found])
        if not found:
            say("there are no leases" if owner is None else f"{owner} owns no leases")

    run_command(work())


@leases.command("evict")
@click.argument("store")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--owner", help="Only what this worker owns; without KEYs, all that it owns.")
@click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
def evict_leases(
    store: str, keys: tuple[str, ...], owner: str | None, yes: bool, output: str
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
        async with existing_store(store) as opened:
            chosen = await _chosen(opened, keys, owner)
            rows = [await _evicted(opened, each, yes=yes) for each in chosen]
        columns = ("key", "owner", "result")
        if output != OutputFormat.TABLE.value:
            fields = [dict(zip(columns, row, strict=True)) for row in rows]
            print_fields({"leases": fields}, OutputFormat(output))
        else:
            print_table([column.upper() for column in columns], rows)
        count = sum(row[-1] in ("evict", "evicted") for row in rows)
        if yes:
            say(f"evicted {counted(count, 'lease')} of {len(rows)}")
        else:
            say(f"dry run: would evict {counted(count, 'lease')} of {len(rows)}; do it with --yes")

    run_command(work())


@leases.command("export")
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
        async with existing_store(store) as opened:
            records = [found.record for found in await records_of(opened)]
        for line in export_lines(records, origin=parse_store_address(store).text):
            click.echo(line, nl=False)
        say(f"exported {counted(len(records), 'lease')}")

    run_command(work())


leases.add_command(import_leases)


async def _chosen(
    store: RecordStore, keys: Sequence[str], owner: str | None
) -> Sequence[Versioned]:
    """Return the leases that somebody named.

    Raises:
        ValidationError: there is none of such a key.
    """
    if not keys:
        return [found async for found in store.scan(owner)]
    chosen = []
    for key in dict.fromkeys(keys):
        found = await store.get(key)
        if found is None:
            raise ValidationError("KEY", f"there is no lease {key}")
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
