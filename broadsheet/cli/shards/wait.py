"""`shardctl shards wait`: wait until each shard is as it should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.names import ShardIds
from broadsheet.cli.numbers import Seconds
from broadsheet.cli.options import Selector, command_options, option, require_selection
from broadsheet.cli.output.messages import counted
from broadsheet.cli.shards.selection import listed_shards
from broadsheet.cli.shards.source_progress import progress_of
from broadsheet.cli.shards.state import UNAVAILABLE, has_primary, status_of
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardError
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.wire import shard_pb2
from broadsheet.wire.labels import ID, label_set, parse_selector, selector as selector_of

WAIT_LOOK_SECONDS = 0.2
"""Pause between two looks."""
NAMED_MAX = 5
"""Shards named by the error of a wait that was too long; the rest are counted."""


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """The state that a wait is for."""

    name: str
    """primary, standby, lag, paused or deleted."""
    lag_below: int = 0
    """Bytes of each source, of `lag`."""

    def unmet(self, shard: shard_pb2.ListResponse.Shard) -> str:
        """Return what a listed shard lacks; empty if nothing. The lag is another question, to its primary.

        Raises:
            ValidationError: it never will, as its spec is.
        """
        spec = shard.spec
        if self.name == "deleted":
            return f"{spec.id} is there"
        if self.name == "paused":
            return self._unpaused(shard)
        if spec.disable:
            raise ValidationError("--for", f"{spec.id} is disabled, so it never has a primary")
        if not has_primary(shard) or status_of(shard) == UNAVAILABLE:
            return f"{spec.id} is {status_of(shard)}"
        if self.name != "standby":
            return ""
        if spec.hot_standbys == 0:
            raise ValidationError("--for", f"{spec.id} has hot_standbys: 0, so it has no standby")
        ready = sum(each.code == shard_pb2.ReplicaStatus.STANDBY for each in shard.status)
        # Where fewer are granted than the spec wants, all that are there count.
        wanted = max(1, len(shard.status) - 1) if shard.standbys_refused else spec.hot_standbys
        return "" if ready >= wanted else f"{spec.id} has {ready} of {wanted} standbys"

    @staticmethod
    def _unpaused(shard: shard_pb2.ListResponse.Shard) -> str:
        if not shard.spec.disable:
            raise ValidationError("--for", f"{shard.spec.id} is not paused: shards pause does it")
        return (
            f"{shard.spec.id} has {counted(len(shard.status), 'replica')}" if shard.status else ""
        )


class _ConditionType(click.ParamType):  # type: ignore[type-arg]  # generic in later versions only
    """The value of `--for`."""

    name = "condition"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> WaitCondition:
        """Return the condition that a text names."""
        if isinstance(value, WaitCondition):
            return value
        name, below, number = value.partition("<")
        if not below and name in {"primary", "standby", "paused", "deleted"}:
            return WaitCondition(name)
        if name == "lag" and number.isdecimal() and int(number) > 0:
            return WaitCondition(name, int(number))
        expected = f"expected primary, standby, paused, deleted or lag<BYTES, got {value!r}"
        raise click.BadParameter(expected, ctx, param)


@command_options
class _WaitOptions:
    shards: ShardIds
    selector: Selector
    condition: WaitCondition = option(
        "What each shard must come to: a primary that serves; all hot standbys of its spec, too; fewer unread "
        "bytes of each source; no replica of one that is paused; not to be there.",
        "--for",
        type=_ConditionType(),
        required=True,
        metavar="primary|standby|lag<BYTES|paused|deleted",
    )
    timeout: float = option(
        "How long to wait; 0: look once.",
        type=Seconds(min=0),
        default=60.0,
        metavar="SECONDS",
    )


@cluster_command("wait", _WaitOptions)
async def wait_for_shards(connection: Connection, options: _WaitOptions) -> None:
    """Wait until each shard is as it should be.

    Ends with status 4 if that takes too long, and says which shards are not.

    \b
    Examples:
      shardctl shards wait flights-000 --for=primary
      shardctl shards wait -l app=flights --for=standby --timeout 300
      shardctl shards wait -l app=flights --for='lag<1000000'
      shardctl shards wait -l app=flights --for=deleted
    """
    require_selection("shard", options.shards, options.selector, changes=False)
    async with connection.shards() as client, connection.journals() as journals:
        await _Wait(client, journals, options).run()


class _Wait:
    """A wait for some shards."""

    def __init__(self, client: ShardClient, journals: JournalClient, options: _WaitOptions) -> None:
        self._client = client
        self._journals = journals
        self._options = options
        self._condition = options.condition
        self._met: set[str] = set()

    async def run(self) -> None:
        """Look until the condition holds for all shards.

        Raises:
            TimeoutError: it took too long.
        """
        deadline = time.monotonic() + self._options.timeout
        unmet: list[str] = []
        while True:
            try:
                unmet = await self._look(self._options.shards, self._options.selector)
            except (EndpointError, TimeoutError) as error:
                # A member that goes is no reason to end: another is asked next.
                unmet = [" ".join(str(error).split())]
            if not unmet:
                return
            if time.monotonic() >= deadline:
                more = f"; and {len(unmet) - NAMED_MAX} more" if len(unmet) > NAMED_MAX else ""
                told = "; ".join(unmet[:NAMED_MAX])
                raise TimeoutError(f"not within {self._options.timeout:g} s: {told}{more}")
            await asyncio.sleep(WAIT_LOOK_SECONDS)

    async def _look(self, shard_ids: Sequence[str], selector: str) -> list[str]:
        if self._condition.name == "deleted":
            wanted = selector_of(label_set(*((ID, each) for each in shard_ids)))
            chosen = wanted if shard_ids else parse_selector(selector)
            return [
                self._condition.unmet(each) for each in (await self._client.list(chosen)).shards
            ]
        listed = (await listed_shards(self._client, shard_ids, selector)).shards
        if not listed:
            raise NothingSelectedError("--selector", f"no shard matches {selector!r}")
        return [text for shard in listed if (text := await self._unmet(shard))]

    async def _unmet(self, shard: shard_pb2.ListResponse.Shard) -> str:
        text = self._condition.unmet(shard)
        if not text and self._condition.name == "lag":
            text = await self._behind(shard.spec.id)
        if not text and shard.spec.id not in self._met:
            self._met.add(shard.spec.id)
            click.echo(f"{shard.spec.id} condition met")
        return text

    async def _behind(self, shard_id: str) -> str:
        try:
            found = await progress_of(self._client, self._journals, shard_id)
        except ShardError as error:
            return str(error)
        limit = self._condition.lag_below
        behind = [each for each in found if each.lag is None or each.lag >= limit]
        return "; ".join(
            f"{shard_id} is {each.lag_text} bytes behind in {each.journal}" for each in behind
        )
