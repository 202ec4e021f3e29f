"""The `shardctl` command."""

from __future__ import annotations

import click

from broadsheet.consumer.cli.lazy_group import LazyGroup
from broadsheet.consumer.cli.output import log_to_stderr


@click.group(
    cls=LazyGroup,
    places={
        "shards": "broadsheet.consumer.cli.shards:shards",
        "journals": "broadsheet.consumer.cli.journals:journals",
        "leases": "broadsheet.consumer.cli.leases:leases",
        "members": "broadsheet.consumer.cli.members:members",
        "plan": "broadsheet.consumer.cli.plan:plan",
        "explain": "broadsheet.consumer.cli.plan:explain",
        "serve": "broadsheet.consumer.cli.serve:serve",
        "dev": "broadsheet.consumer.cli.dev:dev",
    },
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="broadsheet", prog_name="shardctl")
def main() -> None:
    """Declare, inspect, move and serve stateful shards.

    \b
    Start here:
      shardctl dev broadsheet.examples.counter.app:Counter   a whole cluster on this machine
      shardctl shards list                        what runs where
      shardctl shards apply --specs shards.yaml   declare shards
      shardctl plan --drain zone-a#member-0       what a change would move
    """
    # Commands report their errors themselves, so retries inside libraries are noise. `serve` logs
    # more.
    log_to_stderr("error")


if __name__ == "__main__":
    main()
