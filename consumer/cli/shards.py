"""`shardctl shards`: list, apply, stat, unassign, hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.cli.connection import (
    Connection,
    NothingSelectedError,
    connection_options,
    run_command,
)
from broadsheet.consumer.cli.describe import UNAVAILABLE, progress_of, replica_state, status_of
from broadsheet.consumer.cli.output import (
    ListFormat,
    OutputFormat,
    Rows,
    counted,
    fields_of,
    format_option,
    list_format_option,
    print_message,
    print_path,
    print_table,
    require_watchable,
    say,
    selector_option,
    watch_options,
    watch_rows,
)
from broadsheet.consumer.cli.shard_space import (
    changes_of,
    format_shard_space,
    parse_shard_space,
    space_of_listing,
)
from broadsheet.consumer.cli.specs_file import (
    errors_name_places,
    require_distinct,
)
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.protocol import shard_pb2
from broadsheet.consumer.protocol.labels import ID, label_set, parse_selector, values_of
from broadsheet.consumer.protocol.labels import selector as selector_of
from broadsheet.consumer.protocol.validation_shard import validate_shard_apply_request
from broadsheet.consumer.recoverylog.hints import recovery_log_of


@click.command("list")
@click.argument("shard", nargs=-1)
@selector_option
@list_format_option
@click.option("-L", "--label-columns", multiple=True, help="Also show this label; may be repeated.")
@click.option("-r", "--replicas", is_flag=True, help="Also show every replica.")
@click.option("--lag", is_flag=True, help="Also show unread bytes by source (asks each primary).")
@watch_options
@connection_options
def list_shards(
    connection: Connection, shard: Sequence[str], selector: str, **options: Any
) -> None:
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
    output: ListFormat = options["output"]
    table = ShardTable(
        connection,
        label_columns=options["label_columns"],
        replicas=options["replicas"] or output.name == "wide",
        lag=options["lag"],
        wide=output.name == "wide",
    )
    require_watchable(output, watch=options["watch"])

    async def work() -> None:
        async with connection.shards() as client:

            async def look() -> Rows:
                listing = await listed_shards(client, shard, selector)
                return await table.rows(client, listing.shards, selector)

            only_names = output.name == "name"
            if options["watch"]:
                await watch_rows(look, only_names=only_names, interval_seconds=options["interval"])
            elif output.has_rows:
                (await look()).show(only_names=only_names)
            else:
                _print_listing(await listed_shards(client, shard, selector), output)

    run_command(work())


def _print_listing(listing: shard_pb2.ListResponse, output: ListFormat) -> None:
    if output.name == "yaml":
        click.echo(format_shard_space(space_of_listing(listing.shards)), nl=False)
    elif output.name == "json":
        print_message(listing)
    else:
        print_path(fields_of(listing), output.path)


async def listed_shards(
    client: ShardClient, shard_ids: Sequence[str], selector: str
) -> shard_pb2.ListResponse:
    """Return the shards of these ids, or those that match; all if neither is given.

    Raises:
        ValidationError: both are given, or the selector is malformed.
        NothingSelectedError: there is no shard of one of the ids.
    """
    if not shard_ids:
        return await client.list(parse_selector(selector))
    if selector:
        raise ValidationError("--selector", "expected either SHARD or --selector")
    listing = await client.list(selector_of(label_set(*((ID, each) for each in shard_ids))))
    missing = {*shard_ids} - {listed.spec.id for listed in listing.shards}
    if missing:
        raise NothingSelectedError("SHARD", f"there is no shard {', '.join(sorted(missing))}")
    return listing


@click.command("stat")
@click.argument("shard")
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


@click.command("hints")
@click.argument("shard")
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
class ShardTable:
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
                found = await progress_of(client, journals, shard.spec.id)
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
