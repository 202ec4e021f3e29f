"""Options of `shardctl serve` about shards: restarts, stalls, crash loops and recovery.

The defaults are those of `ShardConfig`, so that a member started by a program behaves the same.
"""

from __future__ import annotations

from typing import Final

import click

from broadsheet.cli.options import Group, Parameter
from broadsheet.consumer.shard.environment import ShardConfig

_DEFAULTS: Final = ShardConfig()
_HELP: Final = {
    "restart_delay_seconds": "Longest delay after a shard's first failure; it doubles with each further one.",
    "restart_delay_seconds_max": "What it doubles up to.",
    "healthy_seconds": "A primary that served for so long has its failures forgotten, and did not kill its member.",
    "attempts_max": "Failures of the application in a row until its shard is quarantined; 0: never.",
    "quarantine_seconds": "A quarantined shard is tried again after this; 0: once its spec changes.",
    "poison_attempts": "Failures in a row at one message until it goes to the shard's dead-letter journal.",
    "stall_seconds": "A primary with work that stands still for so long is shown as STALLED; 0: never.",
    "stall_hand_over": "Whether a stalled primary gives its shard up to another member.",
    "unavailable_seconds": "A primary cut off from its broker for so long gives its shard to a standby that is not; 0: "
    "never.",
    "young_deaths_max": "A shard whose last so many primaries died with their process is held back; 0: never.",
    "hold_seconds": "For how long, at first; it doubles with each further death.",
    "stop_grace_seconds": "How long a stopping shard may take to finish its transaction.",
    "hand_over_seconds": "How long a primary may serve on until its successor is ready.",
    "teardown_seconds": "How long to wait for a callback that still runs when its shard has stopped.",
    "hints_seconds": "Age at which a primary replaces the hints of its recovery log.",
    "hints_bytes": "Recorded bytes after which it does so before that.",
    "input_bytes_max": "Bytes of journal that a shard may read ahead of its transactions.",
    "member_input_bytes_max": "Bytes of journal that all shards of this process may read ahead, in equal parts.",
    "producers_bytes_max": "Memory of the producers that a shard knows, 384 bytes each; above it the longest silent "
    "are forgotten.",
    "intent_bytes_max": "Bytes of records for other systems, such as Kafka, at which a transaction takes no more "
    "input; it fails at eight times as many.",
    "file_open_transactions": "Whether checkpoints file producers with open transactions, too; only without Gazette "
    "members.",
    "rollback_again_seconds": "When a primary undoes once more what former ones left; longer than a lease lasts.",
    "clock_ahead_seconds": "A message stamped so far ahead of this process's clock is warned of.",
    "refuse_clocks_ahead": "Whether it is refused as poison is: left out to the dead-letter journal, or the shard "
    "fails.",
    "head_patience_seconds": "How long a source's write head may be below what was read, until it fails; more than a "
    "broker's lease.",
}
"""Fields of `ShardConfig` that are options, in the order of the help; the others are for programs alone."""
_SWITCHES: Final = {
    "stall_hand_over": "--stall-hand-over/--no-stall-hand-over",
    "file_open_transactions": "--file-open-transactions/--name-open-transactions",
    "refuse_clocks_ahead": "--refuse-clocks-ahead/--accept-clocks-ahead",
}


OPTION_OF_LIMIT: Final = {
    name: _SWITCHES.get(name, f"--{name.replace('_', '-')}").partition("/")[0] for name in _HELP
}
"""Names of options by the field of `ShardConfig` that each sets."""


def _option(name: str, help_text: str) -> Parameter:
    return click.option(
        _SWITCHES.get(name, OPTION_OF_LIMIT[name]),
        name,
        envvar=f"CONSUMER_{name.upper()}",
        show_envvar=True,
        default=getattr(_DEFAULTS, name),
        help=help_text,
    )


SHARD_OPTIONS: Final = Group(
    [_option(name, help_text) for name, help_text in _HELP.items()],
    lambda values: ShardConfig(**{name: values.pop(name) for name in _HELP}),
)
"""The limits of each shard."""
