"""`shardctl shards`: list, apply, stat, unassign, hints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from broadsheet.cli.connection import Connection, complete_shards, connection_options, run_command
from broadsheet.cli.describe import UNAVAILABLE, progress_of, replica_state, status_of
from broadsheet.cli.output import (
    ListFormat,
    ListOptions,
    NothingSelectedError,
    OutputFormat,
    Rows,
    Seen,
    counted,
    fields_of,
    format_option,
    list_format_option,
    print_message,
    print_messages,
    print_path,
    print_table,
    require_watchable,
    say,
    selector_option,
    watch_options,
)
from broadsheet.cli.shard_space import (
    changes_of,
    format_shard_space,
    parse_shard_space,
    space_of_listing,
)
from broadsheet.cli.specs_file import errors_name_places, parse_duration, require_distinct
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardError
from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.consumer.registry.move_messages import KIND_NAMES
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.wire import shard_pb2
from broadsheet.wire.allocation_pb2 import ShardMove
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import ID, label_set, parse_selector, selector as selector_of, values_of
from broadsheet.wire.validation_shard import validate_shard_apply_request

LOST_SECONDS = 15.0
"""Silence of all members after which a watch says so; one that lives sends something every ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardListOptions(ListOptions):
    """Options of `shards list`."""

    replicas: bool
    lag: bool


@click.command("list")
@click.argument("shard", nargs=-1, shell_complete=complete_shards)
@selector_option
@list_format_option
@click.option("-L", "--label-columns", multiple=True, help="Also show this label; may be repeated.")
@click.option("-r", "--replicas", is_flag=True, help="Also show every replica.")
@click.option("--lag", is_flag=True, help="Also show unread bytes by source (asks each primary).")
@watch_options
@connection_options
def list_shards(connection: Connection, shard: Sequence[str], selector: str, **values: Any) -> None:
    """List shards with their state.

    All of them, each SHARD, or those that match.

    \b
    Examples:
      shardctl shards list
      shardctl shards list -l 'id:prefix=flights-' --replicas --lag
      shardctl shards list -l app=flights --watch
      shardctl shards list -o name | xargs -n 1 shardctl shards stat
      shardctl shards list -o jsonpath='{.shards[*].spec.id}'
      shardctl shards list -o yaml > specs.yaml   # edit it, then apply it
    """
    options = ShardListOptions(**values)
    wide = options.output.name == "wide"
    table = ShardRows(
        connection,
        label_columns=options.label_columns,
        replicas=options.replicas or wide,
        lag=options.lag,
        wide=wide,
    )
    require_watchable(options.output, watch=options.watch)

    async def work() -> None:
        async with connection.shards() as client:

            async def look() -> Rows:
                listing = await listed_shards(client, shard, selector)
                return await table.rows(client, listing.shards, selector)

            def follow() -> AsyncGenerator[Seen, None]:
                wanted = _wanted(shard, selector)
                return _follow(client, table, wanted, look, interval_seconds=options.interval)

            async def print_whole() -> None:
                _print_listing(await listed_shards(client, shard, selector), options.output)

            # The lag is no part of the table that members keep, so it has to be asked for.
            await options.show(look, print_whole, None if table.lag else follow)

    run_command(work(), endless=options.watch)


def _print_listing(listing: shard_pb2.ListResponse, output: ListFormat) -> None:
    if output.name == "yaml":
        click.echo(format_shard_space(space_of_listing(listing.shards)), nl=False)
    elif output.name == "json":
        print_message(listing)
    else:
        print_path(fields_of(listing), output.path)


async def _follow(
    client: ShardClient,
    table: ShardRows,
    wanted: LabelSelector,
    look: Callable[[], Awaitable[Rows]],
    *,
    interval_seconds: float,
) -> AsyncGenerator[Seen, None]:
    """Yield the rows of the selected shards as members tell of changes, without end."""
    # First as a list, which says at once if no member answers, or a named shard is not there.
    yield await look()
    while True:
        tables = client.watch(
            wanted, unreachable_seconds=LOST_SECONDS, poll_seconds=interval_seconds
        )
        try:
            async with aclosing(tables):
                async for shown in tables:
                    rows = [shown[shard_id] for shard_id in sorted(shown)]
                    yield await table.rows(client, rows, "")
        except EndpointError as error:
            yield error


def _wanted(shard_ids: Sequence[str], selector: str) -> LabelSelector:
    if not shard_ids:
        return parse_selector(selector)
    if selector:
        raise ValidationError("--selector", "expected either SHARD or --selector")
    return selector_of(label_set(*((ID, each) for each in shard_ids)))


async def listed_shards(
    client: ShardClient, shard_ids: Sequence[str], selector: str
) -> shard_pb2.ListResponse:
    """Return the shards of these ids, or those that match; all if neither is given.

    Raises:
        ValidationError: both are given, or the selector is malformed.
        NothingSelectedError: there is no shard of one of the ids.
    """
    listing = await client.list(_wanted(shard_ids, selector))
    missing = {*shard_ids} - {listed.spec.id for listed in listing.shards}
    if missing:
        raise NothingSelectedError("SHARD", f"there is no shard {', '.join(sorted(missing))}")
    return listing


@click.command("stat")
@click.argument("shard", shell_complete=complete_shards)
@click.option(
    "--read-through",
    multiple=True,
    metavar="JOURNAL=OFFSET",
    help="Wait until the shard has read this far; may be repeated.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    help="Seconds to wait for that.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def stat_shard(
    connection: Connection, shard: str, read_through: tuple[str, ...], timeout: float, output: str
) -> None:
    """Show the progress of a shard, as its primary reports it.

    \b
    Examples:
      shardctl shards stat flights-000
      shardctl shards stat flights-000 --timeout 60 \\
          --read-through flights/departures/part-000=1048576
    """

    async def work() -> None:
        async with connection.shards() as client:
            offsets = _offsets(read_through)
            if offsets:
                # Also during a hand-over, or after the death of the primary: the caller waits for
                # the shard, not for a process.
                answer = await client.wait_read_through(shard, offsets, timeout_seconds=timeout)
            else:
                answer = await client.stat(shard, timeout_seconds=timeout)
            if output != OutputFormat.TABLE.value:
                print_message(answer, OutputFormat(output))
                return
            rows = [
                [journal, "read through", str(offset)]
                for journal, offset in sorted(answer.read_through.items())
            ]
            rows += [
                [journal, "published at", str(offset)]
                for journal, offset in sorted(answer.publish_at.items())
            ]
            print_table(["JOURNAL", "PROGRESS", "OFFSET"], rows)

    run_command(work())


@click.command("unassign")
@click.option("-l", "--selector", required=True, help="Label selector; 'id=...' names one shard.")
@click.option("--failed", is_flag=True, help="Only replicas that FAILED.")
@click.option(
    "--dry-run", is_flag=True, help="Print which shards would be unassigned, but change nothing."
)
@connection_options
def unassign_shards(connection: Connection, selector: str, failed: bool, dry_run: bool) -> None:
    """Restart shards.

    They are taken from their members; the allocator assigns them again.

    \b
    Examples:
      shardctl shards unassign -l id=flights-000
      shardctl shards unassign -l 'app=flights' --failed --dry-run
    """

    async def work() -> None:
        async with connection.shards() as client:
            listing = await client.list(parse_selector(selector))
            if not listing.shards:
                raise NothingSelectedError("--selector", f"no shard matches {selector!r}")
            wanted = [
                listed.spec.id for listed in listing.shards if not failed or _any_failed(listed)
            ]
            affected = await client.unassign(wanted, only_failed=failed, dry_run=dry_run)
            for shard_id in affected:
                click.echo(shard_id)
            done = "would unassign" if dry_run else "unassigned"
            say(f"{done} {len(affected)} of {counted(len(wanted), 'shard')}")

    run_command(work())


# Waiting for shards.

WAIT_LOOK_SECONDS = 0.2
"""Pause between two looks."""
NAMED_MAX = 5
"""Shards named by the error of a wait that was too long; the rest are counted."""


@dataclass(frozen=True, slots=True)
class WaitCondition:
    """The state that a wait is for."""

    name: str
    """primary, standby, lag or deleted."""
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
        if not below and name in {"primary", "standby", "deleted"}:
            return WaitCondition(name)
        if name == "lag" and number.isdecimal() and int(number) > 0:
            return WaitCondition(name, int(number))
        expected = f"expected primary, standby, deleted or lag<BYTES, got {value!r}"
        raise click.BadParameter(expected, ctx, param)


@click.command("wait")
@click.argument("shard", nargs=-1, shell_complete=complete_shards)
@selector_option
@click.option(
    "--for",
    "condition",
    type=_ConditionType(),
    required=True,
    metavar="primary|standby|lag<BYTES|deleted",
    help="What each shard must come to: a primary that serves; all hot standbys of its spec, too; fewer unread bytes "
    "of each source; not to be there.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="SECONDS",
    help="How long to wait; 0: look once.",
)
@connection_options
def wait_for_shards(
    connection: Connection,
    shard: Sequence[str],
    selector: str,
    condition: WaitCondition,
    timeout: float,
) -> None:
    """Wait until each shard is as it should be.

    Ends with status 4 if that takes too long, and says which shards are not.

    \b
    Examples:
      shardctl shards wait flights-000 --for=primary
      shardctl shards wait -l app=flights --for=standby --timeout 300
      shardctl shards wait -l app=flights --for='lag<1000000'
      shardctl shards wait -l app=flights --for=deleted
    """

    async def work() -> None:
        if not shard and not selector:
            raise click.UsageError("expected names of shards, or --selector")
        async with connection.shards() as client, connection.journals() as journals:
            await _Wait(client, journals, condition).run(shard, selector, timeout)

    run_command(work())


class _Wait:
    """A wait for some shards."""

    def __init__(
        self, client: ShardClient, journals: JournalClient, condition: WaitCondition
    ) -> None:
        self._client = client
        self._journals = journals
        self._condition = condition
        self._met: set[str] = set()

    async def run(self, shard_ids: Sequence[str], selector: str, timeout_seconds: float) -> None:
        """Look until the condition holds for all shards.

        Raises:
            TimeoutError: it took too long.
        """
        deadline = time.monotonic() + timeout_seconds
        unmet: list[str] = []
        while True:
            try:
                unmet = await self._look(shard_ids, selector)
            except (EndpointError, TimeoutError) as error:
                # A member that goes is no reason to end: another is asked next.
                unmet = [" ".join(str(error).split())]
            if not unmet:
                return
            if time.monotonic() >= deadline:
                more = f"; and {len(unmet) - NAMED_MAX} more" if len(unmet) > NAMED_MAX else ""
                told = "; ".join(unmet[:NAMED_MAX])
                raise TimeoutError(f"not within {timeout_seconds:g} s: {told}{more}")
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


@click.command("hints")
@click.argument("shard", shell_complete=complete_shards)
@format_option(OutputFormat.JSON, OutputFormat.YAML)
@connection_options
def shard_hints(connection: Connection, shard: str, output: str) -> None:
    """Print a shard's recovery hints.

    A shard without a recovery log has none.

    \b
    Examples:
      shardctl shards hints flights-000
      shardctl shards hints flights-000 -o yaml
    """

    async def work() -> None:
        async with connection.shards() as client:
            print_message(await client.get_hints(shard), OutputFormat(output))

    run_command(work())


def read_shard_changes(text: str, source: str) -> list[shard_pb2.ApplyRequest.Change]:
    """Return a file's changes, checked as far as possible without a server.

    Args:
        text: The file's.
        source: Its name, for error messages.

    Raises:
        ValidationError: the file is wrong; the message names the place in it.
    """
    changes = changes_of(parse_shard_space(text, source))
    places = places_of(changes)
    require_distinct(source, [change.delete or change.upsert.id for change in changes], places)
    with errors_name_places(source, places):
        validate_shard_apply_request(shard_pb2.ApplyRequest(changes=changes))
    return changes


def places_of(changes: Sequence[shard_pb2.ApplyRequest.Change]) -> list[str]:
    """Return the place in its file of each change."""
    return [f"shards[{index}]" for index in range(len(changes))]


def _offsets(texts: Sequence[str]) -> dict[str, int]:
    offsets = {}
    for text in texts:
        journal, separator, offset = text.rpartition("=")
        if not separator or not offset.isdecimal():
            raise ValidationError("--read-through", f"expected JOURNAL=OFFSET, got {text!r}")
        offsets[journal] = int(offset)
    return offsets


def _any_failed(listed: shard_pb2.ListResponse.Shard) -> bool:
    return any(status.code == shard_pb2.ReplicaStatus.FAILED for status in listed.status)


@dataclass(frozen=True, slots=True)
class ShardRows:
    """Shards as a table."""

    connection: Connection
    label_columns: Sequence[str] = ()
    replicas: bool = False
    lag: bool = False
    wide: bool = False

    async def rows(
        self,
        client: ShardClient,
        listed: Sequence[shard_pb2.ListResponse.Shard],
        selector: str,
    ) -> Rows:
        """Return the table of a listing; asks the primaries, if their lag is to be shown."""
        columns = ["ID", "STATUS", "RF", "PRIMARY", *(["REPLICAS"] if self.replicas else [])]
        columns += ["SOURCES", "RECOVERY-LOG", "REVISION"] if self.wide else []
        columns += [label.upper() for label in self.label_columns]
        columns += ["LAG"] if self.lag else []
        lags = await self._lags(client, listed) if self.lag else {}
        return Rows(
            columns,
            [self._row(shard, lags) for shard in listed],
            notes={shard.spec.id: _notes_of(shard) for shard in listed},
            nothing=f"no shard matches {selector!r}" if selector else "there are no shards",
        )

    def _row(self, shard: shard_pb2.ListResponse.Shard, lags: Mapping[str, str]) -> list[str]:
        spec = shard.spec
        row = [spec.id, status_of(shard), _replication_of(spec), _primary_of(shard)]
        if self.replicas:
            row.append(" ".join(_replica_texts(shard)))
        if self.wide:
            row.append(" ".join(source.journal for source in spec.sources) or "<none>")
            row += [recovery_log_of(spec) or "<none>", str(shard.mod_revision)]
        row += [",".join(values_of(spec.labels, label)) for label in self.label_columns]
        return [*row, lags.get(spec.id, "")] if self.lag else row

    async def _lags(
        self, client: ShardClient, listed: Sequence[shard_pb2.ListResponse.Shard]
    ) -> dict[str, str]:
        lags: dict[str, str] = {}
        async with self.connection.journals() as journals:
            for shard in listed:
                if not has_primary(shard):
                    lags[shard.spec.id] = "<no primary>"
                    continue
                try:
                    found = await progress_of(client, journals, shard.spec.id)
                except ShardError:
                    # It was handed over, or failed, after it was listed.
                    lags[shard.spec.id] = "<no primary>"
                else:
                    lags[shard.spec.id] = " ".join(f"{e.journal}:{e.lag_text}" for e in found)
        return lags


def has_primary(shard: shard_pb2.ListResponse.Shard) -> bool:
    """Report whether a replica serves as the shard's primary."""
    return any(status.code == shard_pb2.ReplicaStatus.PRIMARY for status in shard.status)


def _notes_of(shard: shard_pb2.ListResponse.Shard) -> list[str]:
    notes = [shard.standbys_refused] if shard.standbys_refused else []
    for status in shard.status:
        notes += status.errors
        notes += [f"{UNAVAILABLE}: {status.unavailable}"] if status.unavailable else []
    return [f"{shard.spec.id}: {note}" for note in notes]


def _replication_of(spec: shard_pb2.ShardSpec) -> str:
    return "0" if spec.disable else str(1 + spec.hot_standbys)


def _replica_texts(shard: shard_pb2.ListResponse.Shard) -> list[str]:
    return [
        f"{member.suffix}:{replica_state(status)}"
        for member, status in zip(shard.route.members, shard.status, strict=True)
    ]


def _primary_of(shard: shard_pb2.ListResponse.Shard) -> str:
    """Return the holder of slot 0, with its status unless that is PRIMARY: it may still be restoring, or have
    failed.
    """
    primary = shard.route.primary
    if primary < 0 or not shard.route.members:
        return "<none>"
    return _replica_texts(shard)[primary].removesuffix(":PRIMARY")


# The history of replicas: when each moved, why, and for whom.

MOVE_COLUMNS = ["TIME", "SHARD", "MOVE", "MEMBER", "SLOT", "REASON", "PLAN", "ACTOR"]


@click.command("moves")
@click.argument("shard", default="", shell_complete=complete_shards)
@click.option("--member", default="", show_default=False, help="Only this member's, zone#suffix.")
@click.option("--since", default="", show_default=False, help="Only the last 90s, 2h, ...")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=0),
    default=100,
    help="Only so many of the newest; 0: all.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def list_moves(
    connection: Connection, shard: str, member: str, since: str, last: int, output: str
) -> None:
    """Show the moves of replicas: of SHARD, or of all.

    Oldest first, from the beginning of the move log. A replica that ended with its member's lease is not in it; what
    followed from that is.

    \b
    Examples:
      shardctl shards moves flights-000
      shardctl shards moves --member zone-a#member-0 --since 2h
      shardctl shards moves --last 0 -o json
    """

    async def work() -> None:
        async with connection.allocation() as client:
            moves = [
                move
                async for move in client.moves(
                    shard_id=shard, member=member, since=_beginning(since)
                )
            ]
        shown = moves[-last:] if last else moves
        if output != OutputFormat.TABLE.value:
            print_messages("moves", shown, OutputFormat(output))
            return
        print_table(MOVE_COLUMNS, [_move_row(move) for move in shown])
        if len(shown) < len(moves):
            say(f"{len(moves) - len(shown)} older ones are not shown: --last 0 shows all")

    run_command(work())


def _beginning(since: str) -> datetime | None:
    if not since:
        return None
    duration = parse_duration(since, "--since")
    return datetime.now(UTC) - timedelta(seconds=duration.ToTimedelta().total_seconds())


def _move_row(move: ShardMove) -> list[str]:
    slots = str(move.slot)
    if move.from_slot >= 0 and move.from_slot != move.slot:
        slots = f"{move.from_slot} > {move.slot}"
    at = move.time.ToDatetime(UTC).isoformat(timespec="milliseconds")
    kind = KIND_NAMES.get(move.kind, str(move.kind))
    return [at, move.shard, kind, move.member, slots, move.reason, move.plan_id, move.actor]
