"""`shardctl shards split`: divide a shard's keys between two shards while it serves."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import UTF8, DryRun, command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_list
from broadsheet.cli.output.messages import say
from broadsheet.consumer.elastic.split_plan import cut_points
from broadsheet.consumer.errors import SplitConflictError
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.elastic_pb2 import SplitShardResponse
from broadsheet.wire.key_range import GROUPS, KeyRange, group_of
from broadsheet.wire.labels import FORK_OF, ID, label_set, selector, values_of

_LOOK_SECONDS = 0.2


@command_options
class _SplitOptions:
    shard: ShardId
    at: str | None = option(
        "Give the child this key and those of all groups behind its group. For keys of one text field.",
        type=UTF8,
    )
    at_group: int | None = option(
        f"First group of keys that the child gets, 1 to {GROUPS - 1}; default: the median of its load, or the middle.",
        type=click.IntRange(1, GROUPS - 1),
    )
    into: int | None = option(
        "Split into so many shards of about one load, one after another.",
        type=click.IntRange(min=2),
    )
    child: str = option(
        "Id of the new shard; default: the shard's, and its first group.", default=""
    )
    dry_run: DryRun
    output: Output


@cluster_command("split", _SplitOptions)
async def split_shard(connection: Connection, options: _SplitOptions) -> None:
    """Divide the keys of a shard between it and a new one, while it serves.

    The new shard follows the old one's recovery log; then the old one rests for some tens of milliseconds, and both
    go on with their keys. Whatever process dies meanwhile, each row is handled once. The application must be keyed.

    \b
    Examples:
      shardctl shards split visits-000 --dry-run   # what would come of it
      shardctl shards split visits-000             # at the median of its load
      shardctl shards split visits-000 --at alice
      shardctl shards split visits-000 --into 4
    """
    _check(options)
    at_group = options.at_group if options.at is None else group_of(_text_key(options.at))
    async with connection.elastic() as client:
        plan = await client.plan_split(options.shard, at_group=at_group, child=options.child or "")
        cuts = [plan.given_begin]
        if options.into is not None:
            cuts = cut_points(
                KeyRange(plan.kept_begin, plan.given_end), options.into, plan.quantile_groups
            )
        if options.dry_run:
            _print_plan(options, plan, cuts)
            say("dry run: nothing was changed")
            return
        # From the end on, so that the shard that is split always begins where it did.
        for number, cut in enumerate(reversed(cuts), 1):
            async with connection.journals() as journals:
                done = await client.split(
                    options.shard, journals, at_group=cut, child=options.child or ""
                )
            say(f"shard {done.child.id} follows {options.shard} as of revision {done.revision}")
            if number < len(cuts):
                await _until_it_serves(connection, done.child.id)
    say("it serves soon: shardctl shards splits")
    if options.output is not OutputFormat.TABLE:
        _print_plan(options, plan, cuts)


def _check(options: _SplitOptions) -> None:
    given = [
        name
        for name, value in (
            ("--at", options.at),
            ("--at-group", options.at_group),
            ("--into", options.into),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise ValidationError(given[1], f"expected none beside {given[0]}")
    if options.into is not None and options.child:
        raise ValidationError("--child", "expected none beside --into, which makes several shards")


def _text_key(text: str) -> bytes:
    """Return the bytes of a key of one text field, as keyed state has them."""
    return b"\x01" + text.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"


async def _until_it_serves(connection: Connection, child: str) -> None:
    async with connection.shards() as client:
        while True:
            found = (await client.list(selector(label_set((ID, child))))).shards
            if not found:
                raise SplitConflictError(
                    f"shard {child} was deleted, or its split cancelled; what was split before stays, and no more is "
                    "split: look at `shardctl shards list`, and split what is too large"
                )
            if not values_of(found[0].spec.labels, FORK_OF):
                return
            await asyncio.sleep(_LOOK_SECONDS)


def _print_plan(options: _SplitOptions, plan: SplitShardResponse, cuts: list[int]) -> None:
    bounds = [plan.kept_begin, *cuts, plan.given_end]
    ids = [options.shard, *(f"{options.shard}-{cut:04x}" for cut in cuts)]
    if len(cuts) == 1:
        ids[1] = plan.child.id
    owned = [KeyRange(begin, end) for begin, end in pairwise(bounds)]
    found = [
        {"shard": shard_id, "begin": each.begin, "end": each.end}
        for shard_id, each in zip(ids, owned, strict=True)
    ]
    rows = [
        [shard_id, str(each), str(each.end - each.begin)]
        for shard_id, each in zip(ids, owned, strict=True)
    ]
    print_list(options.output, "shards", found, ["SHARD", "KEYS", "GROUPS"], rows)
