"""`shardctl leases evict`: take leases from their owners."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.leases.command import store_command
from broadsheet.cli.names import store_named
from broadsheet.cli.options import YesOrDryRun, argument, command_options, option
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.messages import counted, say
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.opening import existing_store
from broadsheet.leases.record import Versioned
from broadsheet.leases.store import RecordStore
from broadsheet.runtime.errors import ValidationError


@command_options
class _EvictOptions:
    store: str = argument()
    keys: tuple[str, ...] = argument(nargs=-1, metavar="[KEY]...")
    owner: str | None = option("Only what this worker owns; without KEYs, all that it owns.")
    yes: YesOrDryRun
    output: Output


@store_command("evict", _EvictOptions)
async def evict_leases(options: _EvictOptions) -> None:
    """Take leases from their owners.

    Checkpoints stay. An owner that lives learns of it at its next write, and may take the lease again; in a hand-off
    the next owner has it then. Nothing is done without --yes.

    \b
    Examples:
      shardctl leases evict etcd:/my-application shardId-000000000007
      shardctl leases evict etcd:/my-application --owner host-1 --yes
    """
    if not options.keys and options.owner is None:
        raise ValidationError("KEY", "expected KEYs, or --owner, or both")
    async with existing_store(store_named(options.store)) as opened:
        chosen = await _chosen(opened, options.keys, options.owner)
        rows = [await _evicted(opened, each, yes=options.yes) for each in chosen]
    columns = ("key", "owner", "result")
    items = [dict(zip(columns, row, strict=True)) for row in rows]
    print_list(options.output, "leases", items, [each.upper() for each in columns], rows)
    count = sum(row[-1] in ("evict", "evicted") for row in rows)
    if options.yes:
        say(f"evicted {counted(count, 'lease')} of {len(rows)}")
    else:
        say(f"dry run: would evict {counted(count, 'lease')} of {len(rows)}; do it with --yes")


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


async def _evicted(store: RecordStore, found: Versioned, *, yes: bool) -> list[str]:
    """Return a row: key, owner, what was done or would be."""
    key, owner = found.record.key, found.record.owner
    if owner is None:
        return [key, "-", "has no owner"]
    if not yes:
        return [key, owner, "evict"]
    done = await LeaseManager(store).evict(found)
    return [key, owner, "evicted" if done is not None else "changed hands meanwhile"]
