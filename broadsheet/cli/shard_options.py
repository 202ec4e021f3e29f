"""Options of `shardctl serve` about shards: restarts, stalls, crash loops and recovery.

The defaults are those of `ShardConfig`, so that a member started by a program behaves the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

import click

from broadsheet.consumer.member.accrual import SUSPICION_PHI
from broadsheet.consumer.shard.environment import ShardConfig

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_DEFAULTS = ShardConfig()
_option = partial(click.option, show_envvar=True)

_OPTIONS = (
    _option(
        "--restart-delay-seconds",
        envvar="CONSUMER_RESTART_DELAY_SECONDS",
        default=_DEFAULTS.restart_delay_seconds,
        help="Longest delay after a shard's first failure; it doubles with each further one.",
    ),
    _option(
        "--restart-delay-seconds-max",
        envvar="CONSUMER_RESTART_DELAY_SECONDS_MAX",
        default=_DEFAULTS.restart_delay_seconds_max,
        help="What it doubles up to.",
    ),
    _option(
        "--healthy-seconds",
        envvar="CONSUMER_HEALTHY_SECONDS",
        default=_DEFAULTS.healthy_seconds,
        help="A primary that served for so long starts its failures anew, and did not kill its member.",
    ),
    _option(
        "--attempts-max",
        envvar="CONSUMER_ATTEMPTS_MAX",
        default=_DEFAULTS.attempts_max,
        help="Failures of the application in a row until its shard is quarantined; 0: never.",
    ),
    _option(
        "--quarantine-seconds",
        envvar="CONSUMER_QUARANTINE_SECONDS",
        default=_DEFAULTS.quarantine_seconds,
        help="A quarantined shard is tried again after this; 0: once its spec changes.",
    ),
    _option(
        "--poison-attempts",
        envvar="CONSUMER_POISON_ATTEMPTS",
        default=_DEFAULTS.poison_attempts,
        help="Failures in a row at one message until it goes to the shard's dead-letter journal.",
    ),
    _option(
        "--stall-seconds",
        envvar="CONSUMER_STALL_SECONDS",
        default=_DEFAULTS.stall_seconds,
        help="A primary with work that stands still for so long is shown as STALLED; 0: never.",
    ),
    _option(
        "--stall-hand-over/--no-stall-hand-over",
        envvar="CONSUMER_STALL_HAND_OVER",
        default=_DEFAULTS.stall_hand_over,
        help="Whether a stalled primary gives its shard up to another member.",
    ),
    _option(
        "--unavailable-seconds",
        envvar="CONSUMER_UNAVAILABLE_SECONDS",
        default=_DEFAULTS.unavailable_seconds,
        help="A primary cut off from its broker for so long gives its shard to a standby that is not; 0: never.",
    ),
    _option(
        "--young-deaths-max",
        envvar="CONSUMER_YOUNG_DEATHS_MAX",
        default=_DEFAULTS.young_deaths_max,
        help="A shard whose last so many primaries died with their process is held back; 0: never.",
    ),
    _option(
        "--hold-seconds",
        envvar="CONSUMER_HOLD_SECONDS",
        default=_DEFAULTS.hold_seconds,
        help="For how long, at first; it doubles with each further death.",
    ),
    _option(
        "--stop-grace-seconds",
        envvar="CONSUMER_STOP_GRACE_SECONDS",
        default=_DEFAULTS.stop_grace_seconds,
        help="How long a stopping shard may take to finish its transaction.",
    ),
    _option(
        "--hand-over-seconds",
        envvar="CONSUMER_HAND_OVER_SECONDS",
        default=_DEFAULTS.hand_over_seconds,
        help="How long a primary may serve on until its successor is ready.",
    ),
    _option(
        "--teardown-seconds",
        envvar="CONSUMER_TEARDOWN_SECONDS",
        default=_DEFAULTS.teardown_seconds,
        help="How long to wait for a callback that still runs when its shard has stopped.",
    ),
    _option(
        "--hints-seconds",
        envvar="CONSUMER_HINTS_SECONDS",
        default=_DEFAULTS.hints_seconds,
        help="Age at which a primary replaces the hints of its recovery log.",
    ),
    _option(
        "--hints-bytes",
        envvar="CONSUMER_HINTS_BYTES",
        default=_DEFAULTS.hints_bytes,
        help="Recorded bytes after which it does so before that.",
    ),
    _option(
        "--input-bytes-max",
        envvar="CONSUMER_INPUT_BYTES_MAX",
        default=_DEFAULTS.input_bytes_max,
        help="Bytes of journal that a shard may read ahead of its transactions.",
    ),
    _option(
        "--member-input-bytes-max",
        envvar="CONSUMER_MEMBER_INPUT_BYTES_MAX",
        default=_DEFAULTS.member_input_bytes_max,
        help="Bytes of journal that all shards of this process may read ahead, in equal parts.",
    ),
    _option(
        "--producers-bytes-max",
        envvar="CONSUMER_PRODUCERS_BYTES_MAX",
        default=_DEFAULTS.producers_bytes_max,
        help="Memory of the producers that a shard knows, 384 bytes each; above it the longest silent are forgotten.",
    ),
    _option(
        "--file-open-transactions/--name-open-transactions",
        envvar="CONSUMER_FILE_OPEN_TRANSACTIONS",
        default=_DEFAULTS.file_open_transactions,
        help="Whether checkpoints file producers with open transactions, too; only without Gazette members.",
    ),
    _option(
        "--rollback-again-seconds",
        envvar="CONSUMER_ROLLBACK_AGAIN_SECONDS",
        default=_DEFAULTS.rollback_again_seconds,
        help="When a primary undoes once more what former ones left; longer than a lease lasts.",
    ),
    _option(
        "--clock-ahead-seconds",
        envvar="CONSUMER_CLOCK_AHEAD_SECONDS",
        default=_DEFAULTS.clock_ahead_seconds,
        help="A message stamped so far ahead of this process's clock is warned of.",
    ),
    _option(
        "--refuse-clocks-ahead/--accept-clocks-ahead",
        envvar="CONSUMER_REFUSE_CLOCKS_AHEAD",
        default=_DEFAULTS.refuse_clocks_ahead,
        help="Whether it is refused as poison is: left out to the dead-letter journal, or the shard fails.",
    ),
    _option(
        "--head-patience-seconds",
        envvar="CONSUMER_HEAD_PATIENCE_SECONDS",
        default=_DEFAULTS.head_patience_seconds,
        help="How long a source's write head may be below what was read, until it fails; more than a broker's lease.",
    ),
    _option(
        "--watch-peers/--no-watch-peers",
        envvar="CONSUMER_WATCH_PEERS",
        default=True,
        help="Whether to end the leases of members whose process is found to have ended, or fallen silent.",
    ),
    _option(
        "--suspicion-phi",
        envvar="CONSUMER_SUSPICION_PHI",
        default=SUSPICION_PHI,
        help="How sure to be that a silent member is gone before others are asked; 0: wait for its lease.",
    ),
)


def shard_options(command: CommandT) -> CommandT:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def shard_config(options: Mapping[str, Any]) -> ShardConfig:
    """Return the limits of each shard from a command line.

    Args:
        options: By parameter name, as click gives them.
    """
    # An option has its field's name; a few fields are for programs alone.
    return ShardConfig(
        **{each.name: options[each.name] for each in fields(ShardConfig) if each.name in options}
    )
