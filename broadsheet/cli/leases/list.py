"""`shardctl leases list`: leases, their owners and checkpoints."""

from __future__ import annotations

from broadsheet.cli.leases.command import store_command
from broadsheet.cli.leases.documents import lease_fields
from broadsheet.cli.names import store_named
from broadsheet.cli.numbers import Seconds
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.messages import say
from broadsheet.leases.lease_rows import LEASE_COLUMNS, lease_row, lease_states
from broadsheet.leases.opening import existing_store


@command_options
class _ListOptions:
    store: str = argument()
    owner: str | None = option("Only what this worker owns.")
    watch_seconds: float | None = option(
        "Look twice, so far apart: an owner that did not move is gone. Give the length of a lease. "
        "Not needed where the store says who lives (etcd, and the layouts eph and vmware-go).",
        "--watch",
        type=Seconds(min=0, min_open=True),
        metavar="SECONDS",
    )
    output: Output


@store_command("list", _ListOptions, short_help="List leases, their owners and checkpoints.")
async def list_leases(options: _ListOptions) -> None:
    """List leases with their owners and checkpoints.

    \b
    Examples:
      shardctl leases list etcd:/my-application
      shardctl leases list 'dynamodb:orders?layout=kcl-java' --watch 10
      shardctl leases list sql:sqlite:////var/lib/leases.db -o json
    """
    address, owner = store_named(options.store), options.owner
    async with existing_store(address) as opened:
        told = await lease_states(opened, address.layout, watch_seconds=options.watch_seconds)
    found = [(each, is_free) for each, is_free in told if owner in (None, each.record.owner)]
    items = [lease_fields(each, is_free=is_free) for each, is_free in found]
    rows = [lease_row(each, is_free=is_free) for each, is_free in found]
    if print_list(options.output, "leases", items, LEASE_COLUMNS, rows) and not found:
        say("there are no leases" if owner is None else f"{owner} owns no leases")
