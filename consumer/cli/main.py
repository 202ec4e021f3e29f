"""The `shardctl` command."""

from __future__ import annotations

import click

from consumer.cli.dev import dev
from consumer.cli.journals import journals
from consumer.cli.leases import leases
from consumer.cli.logs import log_to_stderr
from consumer.cli.moves import list_moves
from consumer.cli.plan import explain, plan
from consumer.cli.recover import recover_shard
from consumer.cli.recovery import prune_shards, rewind_shard
from consumer.cli.serve import serve
from consumer.cli.shards import shards


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="broadsheet", prog_name="shardctl")
def main() -> None:
    """Declare, inspect, move and serve stateful shards.

    \b
    Start here:
      shardctl dev examples.counter.app:Counter   a whole cluster on this machine
      shardctl shards list                        what runs where
      shardctl shards apply --specs shards.yaml   declare shards
      shardctl plan --drain zone-a#member-0       what a change would move
    """
    # Commands tell their errors themselves; what libraries retry on the way is noise. `serve` says otherwise.
    log_to_stderr("error")


for command in (list_moves, prune_shards, recover_shard, rewind_shard):
    shards.add_command(command)
main.add_command(shards)
main.add_command(journals)
main.add_command(leases)
main.add_command(plan)
main.add_command(explain)
main.add_command(serve)
main.add_command(dev)

if __name__ == "__main__":
    main()
