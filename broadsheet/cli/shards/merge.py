"""`shardctl shards merge`: give the keys of two neighbours to one of them while they serve."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import SHARD_ID, ShardId, complete_shards
from broadsheet.cli.options import DryRun, argument, command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_messages
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table
from broadsheet.wire.elastic_pb2 import MergeShardsResponse
from broadsheet.wire.key_range import KeyRange


@command_options
class _MergeOptions:
    shard: ShardId
    other: str = argument(type=SHARD_ID, shell_complete=complete_shards)
    survivor: str = option(
        "Which of the two goes on with the keys of both; default: SHARD.",
        "--as",
        default="",
    )
    dry_run: DryRun
    output: Output


@cluster_command("merge", _MergeOptions)
async def merge_shards(connection: Connection, options: _MergeOptions) -> None:
    """Give the keys of two neighbours of a family to one of them, while they serve.

    SHARD follows OTHER's recovery log and takes its rows in; then both rest for some tens of milliseconds, and SHARD
    goes on with the keys of both. OTHER is deleted; its recovery log stays. Whatever process dies meanwhile, each row
    is handled once.

    \b
    Examples:
      shardctl shards merge visits-000 visits-001 --dry-run   # only the plan
      shardctl shards merge visits-000 visits-001
      shardctl shards merge visits-000 visits-001 --as visits-001
      shardctl shards merges   # how far it is
    """
    async with connection.elastic() as client:
        plan = await client.merge(
            options.shard, options.other, survivor=options.survivor, dry_run=options.dry_run
        )
    if options.output is not OutputFormat.TABLE:
        print_messages("merges", [plan], options.output)
        return
    if options.dry_run:
        _print_plan(plan)
        say("dry run: nothing was changed")
        return
    say(
        f"shard {plan.survivor} takes in {plan.absorbed} as of revision {plan.revision}; it has its keys soon: "
        "shardctl shards merges"
    )


def _print_plan(plan: MergeShardsResponse) -> None:
    owned = KeyRange(plan.owned_begin, plan.owned_end)
    given = KeyRange(plan.given_begin, plan.given_end)
    print_table(
        ["SHARD", "KEYS", "GROUPS", "GETS"],
        [[plan.survivor, str(owned), str(owned.end - owned.begin), f"{given} of {plan.absorbed}"]],
    )
