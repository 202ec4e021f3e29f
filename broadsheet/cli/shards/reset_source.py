"""`shardctl shards reset-source`: make a shard continue in a source that was replaced."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.names import SHARD_ID, complete_shards
from broadsheet.cli.options import YesOrDryRun, argument, command_options, option
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.shards.state import has_failed
from broadsheet.consumer.client import RecoveryClient, ShardClient
from broadsheet.consumer.errors import SourceResetRefusedError
from broadsheet.journals.guard import epoch_text
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import ID, label_set, parse_selector, selector as selector_of
from broadsheet.wire.recovery_pb2 import SourceReset
from broadsheet.wire.shard_pb2 import ListResponse

WRITE_HEAD = -1
HEAD = "head"


@command_options
class _ResetSourceOptions:
    shard: str = argument(required=False, default="", type=SHARD_ID, shell_complete=complete_shards)
    selector: str = option(
        "Instead of SHARD: all failed shards that match.", "-l", default="", show_default=False
    )
    journal: str = option(
        "The source; all sources of each shard if not given.", default="", show_default=False
    )
    to_offset: str = option(
        "Where to go on: 0 reads all that is there now, 'head' only what is written from now on.",
        required=True,
        metavar="0|head|N",
    )
    yes: YesOrDryRun


@cluster_command("reset-source", _ResetSourceOptions)
async def reset_source(connection: Connection, options: _ResetSourceOptions) -> None:
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
    offset = _reset_offset(options.to_offset)
    async with connection.shards() as shards, connection.recovery() as recovery:
        wanted = [
            (listed.spec.id, source.journal)
            for listed in await _reset_targets(shards, options.shard, options.selector)
            for source in listed.spec.sources
            if options.journal in ("", source.journal)
        ]
        if not wanted:
            problem = f"expected a source of the shard, got {options.journal!r}"
            raise ValidationError("--journal", problem)
        await _reset_all(recovery, wanted, offset, dry_run=not options.yes)


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
            rows.append(_reset_row(shard_id, journal, done))
    print_table(["SHARD", "SOURCE", "GOES ON AT", "WRITE HEAD", "EPOCH", "UNASSIGNED"], rows)
    if dry_run:
        say(f"dry run: {counted(len(rows), 'source')} would be reset; --yes does it")
    else:
        say(f"{counted(len(rows), 'reset')} on file; the next primaries apply what is needed")
    for refusal in refusals[:-1]:
        say(str(refusal))
    if refusals:
        raise refusals[-1]


def _reset_row(shard_id: str, journal: str, done: SourceReset) -> list[str]:
    epoch = epoch_text(done.epoch if done.HasField("epoch") else None)
    return [
        shard_id,
        journal,
        str(done.offset),
        str(done.write_head),
        epoch,
        " ".join(done.unassigned),
    ]


async def _reset_targets(
    client: ShardClient, shard: str, selector: str
) -> list[ListResponse.Shard]:
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
    found = [each for each in matching if has_failed(each)]
    if not found:
        raise NothingSelectedError("--selector", f"no failed shard matches {selector!r}")
    return found


def _reset_offset(text: str) -> int:
    if text == HEAD:
        return WRITE_HEAD
    if not text.isdecimal():
        raise ValidationError("--to-offset", f"expected 0, head, or an offset, got {text!r}")
    return int(text)
