"""`shardctl shards replay`: publish messages that a shard left out once more.

A message comes to the end of its source. Its producer is made from the letter, so that the same letter, replayed
twice, is one message to readers who count each once.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.names import ShardId
from broadsheet.cli.numbers import OFFSET
from broadsheet.cli.options import YesOrDryRun, command_options, flag, option
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.shards.dead_letters import Letter, letters_of
from broadsheet.cli.shards.selection import shard_of
from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import CONTENT_TYPE, value_of


@command_options
class _ReplayOptions:
    shard: ShardId
    offsets: tuple[int, ...] = option(
        "Only this letter, as `shards dead-letters` lists it; may be repeated.",
        "--letter",
        type=OFFSET,
        multiple=True,
        metavar="OFFSET",
    )
    shared: bool = flag(
        "Also into sources that other shards read, which get the messages once more, too."
    )
    yes: YesOrDryRun


@cluster_command("replay", _ReplayOptions)
async def replay(connection: Connection, options: _ReplayOptions) -> None:
    """Publish messages that a shard left out once more.

    Once the application can digest them. They come to the end of their source, after all that is there. A letter that
    is replayed again is the same message, which a shard that has it already does not count twice. Only JSON messages
    can be replayed.

    \b
    Examples:
      shardctl shards replay flights-000          # a dry run
      shardctl shards replay flights-000 --yes
      shardctl shards replay flights-000 --letter 4096 --yes
    """
    shard, yes = options.shard, options.yes
    async with connection.shards() as client, connection.journals() as journals:
        spec = (await shard_of(client, shard)).spec
        chosen = _chosen(await letters_of(journals, spec), options.offsets)
        playable = [each for each in chosen if not each.obstacle]
        sources = {each.journal for each in playable}
        if not options.shared:
            await _require_unshared(client, shard, sources)
        for source in sorted(sources):
            await _require_json(journals, source)
        contents = [(each, each.published()) for each in playable]
        for letter, content in contents:
            if yes:
                await journals.append(letter.journal, content)
            click.echo(f"{letter.offset} {'replayed' if yes else 'would be replayed'}")
    for each in chosen:
        if each.obstacle:
            say(f"letter {each.offset} is left: {each.obstacle}")
    if not yes:
        say(f"dry run: {counted(len(playable), 'message')} would be replayed; --yes does it")


def _chosen(letters: Sequence[Letter], offsets: Sequence[int]) -> list[Letter]:
    known = {each.offset: each for each in letters}
    missing = [str(offset) for offset in offsets if offset not in known]
    if missing:
        raise NothingSelectedError("--letter", f"there is no letter {', '.join(missing)}")
    return [known[offset] for offset in dict.fromkeys(offsets)] if offsets else list(letters)


async def _require_unshared(client: ShardClient, shard_id: str, sources: set[str]) -> None:
    for listed in (await client.list()).shards:
        read = {source.journal.partition(";")[0] for source in listed.spec.sources}
        if listed.spec.id != shard_id and (common := sources & read):
            problem = f"shard {listed.spec.id} reads {min(common)}, too, and would get the messages once more"
            raise ValidationError("--shared", f"{problem}; with it, that is accepted")


async def _require_json(journals: JournalClient, source: str) -> None:
    content_type = value_of((await journals.get(source)).spec.labels, CONTENT_TYPE)
    if content_type != NDJSON:
        problem = (
            f"its messages are {content_type or 'of no content type'}: publish them by a program"
        )
        raise ValidationError(source, problem)
