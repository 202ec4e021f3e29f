"""`shardctl shards reset-source`: lets shards continue in a source that was replaced."""

from __future__ import annotations

import click

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.cli.connection import (
    Connection,
    complete_shards,
    connection_options,
    run_command,
)
from broadsheet.consumer.cli.output import NothingSelectedError, counted, print_table, say
from broadsheet.consumer.client import RecoveryClient, ShardClient
from broadsheet.consumer.errors import SourceResetRefusedError
from broadsheet.consumer.journal.guard import epoch_text
from broadsheet.consumer.protocol.labels import ID, label_set, parse_selector
from broadsheet.consumer.protocol.labels import selector as selector_of
from broadsheet.consumer.protocol.recovery_pb2 import SourceReset
from broadsheet.consumer.protocol.shard_pb2 import ListResponse, ReplicaStatus

WRITE_HEAD = -1
HEAD = "head"


@click.command("reset-source")
@click.argument("shard", required=False, default="", shell_complete=complete_shards)
@click.option(
    "-l",
    "--selector",
    default="",
    show_default=False,
    help="Instead of SHARD: all failed shards that match.",
)
@click.option(
    "--journal",
    default="",
    show_default=False,
    help="The source; all sources of each shard if not given.",
)
@click.option(
    "--to-offset",
    required=True,
    metavar="0|head|N",
    help="Where to go on: 0 reads all that is there now, 'head' only what is written from now on.",
)
@click.option("--yes", is_flag=True, help="Do it; without, print what would be done.")
@connection_options
def reset_source(
    connection: Connection, shard: str, selector: str, journal: str, to_offset: str, yes: bool
) -> None:
    """Make a shard continue in a source that was replaced.

    For a shard that failed because a source does not hold what the shard has read of it: a journal that was deleted and
    applied again, or that has lost its end. A source that does hold it is left as it is. Messages that the shard has
    counted are not counted again if the same are in the journal that is there now.

    \b
    Examples:
      shardctl shards reset-source flights-000 --to-offset 0   # a dry run
      shardctl shards reset-source flights-000 --to-offset 0 --yes
      shardctl shards reset-source flights-000 --to-offset head \\
          --journal flights/part-000 --yes
      shardctl shards reset-source -l app=flights --to-offset head --yes
    """

    async def work() -> None:
        offset = _offset(to_offset)
        async with connection.shards() as shards, connection.recovery() as recovery:
            wanted = [
                (listed.spec.id, source.journal)
                for listed in await _listed(shards, shard, selector)
                for source in listed.spec.sources
                if journal in ("", source.journal)
            ]
            if not wanted:
                raise ValidationError(
                    "--journal", f"expected a source of the shard, got {journal!r}"
                )
            await _reset_all(recovery, wanted, offset, dry_run=not yes)

    run_command(work())


async def _reset_all(
    recovery: RecoveryClient, wanted: list[tuple[str, str]], offset: int, *, dry_run: bool
) -> None:
    """Reset the sources one by one; refusals are reported at the end, when the others are done."""
    rows: list[list[str]] = []
    refusals: list[SourceResetRefusedError] = []
    for shard_id, journal in wanted:
        ask = recovery.plan_reset_source if dry_run else recovery.reset_source
        try:
            done = await ask(shard_id, journal=journal, offset=offset)
        except SourceResetRefusedError as error:
            refusals.append(error)
        else:
            rows.append(_row(shard_id, journal, done))
    print_table(["SHARD", "SOURCE", "GOES ON AT", "WRITE HEAD", "EPOCH", "UNASSIGNED"], rows)
    if dry_run:
        say(f"dry run: {counted(len(rows), 'source')} would be reset; --yes does it")
    else:
        say(f"{counted(len(rows), 'reset')} on file; the next primaries apply what is needed")
    for refusal in refusals[:-1]:
        say(str(refusal))
    if refusals:
        raise refusals[-1]


def _row(shard_id: str, journal: str, done: SourceReset) -> list[str]:
    epoch = epoch_text(done.epoch if done.HasField("epoch") else None)
    return [
        shard_id,
        journal,
        str(done.offset),
        str(done.write_head),
        epoch,
        " ".join(done.unassigned),
    ]


async def _listed(client: ShardClient, shard: str, selector: str) -> list[ListResponse.Shard]:
    """Return the selected shards.

    Raises:
        ValidationError: none is, or it is not clear which.
    """
    if bool(shard) == bool(selector):
        raise ValidationError("SHARD", "expected either SHARD or --selector")
    if shard:
        found = list((await client.list(selector_of(label_set((ID, shard))))).shards)
        if not found:
            raise NothingSelectedError("SHARD", f"there is no shard {shard!r}")
        return found
    matching = (await client.list(parse_selector(selector))).shards
    found = [each for each in matching if _has_failed(each)]
    if not found:
        raise NothingSelectedError("--selector", f"no failed shard matches {selector!r}")
    return found


def _has_failed(listed: ListResponse.Shard) -> bool:
    return any(status.code == ReplicaStatus.FAILED for status in listed.status)


def _offset(text: str) -> int:
    if text == HEAD:
        return WRITE_HEAD
    if not text.isdecimal():
        raise ValidationError("--to-offset", f"expected 0, head, or an offset, got {text!r}")
    return int(text)
