"""Asks how often words came: `python -m broadsheet.examples.word_count.ask WORD…`, or without words for the most
frequent ones.

The answer includes all lines that are in the journals when it is asked. A word passes two shards, so it waits twice:
until the first stage has read all lines, and until the second has read everything that the first had published by then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import click

from broadsheet.consumer import CONSUMER_ADDRESS_DEFAULT, ShardClient, Status
from broadsheet.examples.word_count.messages import (
    COUNT_SHARDS,
    LINE_JOURNALS,
    SPLIT_SHARDS,
    WORD_JOURNALS,
    shard_of,
)
from broadsheet.examples.word_count.word_count_pb2 import ListCountsRequest, ListCountsResponse
from broadsheet.examples.word_count.word_count_pb2_grpc import WordCountServiceStub
from broadsheet.journals import BROKER_ADDRESS_DEFAULT, JournalClient
from broadsheet.security import open_channel

_RPC_SECONDS_MAX = 30.0


async def words_published(shards: ShardClient, broker: str) -> dict[str, int]:
    """Return offsets of the journals of words, below which are all words of the lines that are there now.

    Args:
        shards: A client of the members. It waits for shards, whichever member serves them meanwhile.
        broker: Address of the broker.
    """
    published = dict.fromkeys(WORD_JOURNALS, 0)
    async with JournalClient(broker) as journals:
        for shard, journal in zip(SPLIT_SHARDS, LINE_JOURNALS, strict=True):
            head = await journals.write_head(journal)
            stat = await shards.wait_read_through(
                shard, {journal: head}, timeout_seconds=_RPC_SECONDS_MAX
            )
            for target, offset in stat.publish_at.items():
                published[target] = max(published[target], offset)
    return published


async def counts_of(
    member: str, words: Sequence[str], *, limit: int, read_through: Mapping[str, int]
) -> Counter[str]:
    """Return the counts of words, or of the most frequent ones.

    Args:
        member: Address of any member; it forwards to the shards' primaries.
        words: In lower case; none asks for the most frequent.
        limit: Most words returned if none is named.
        read_through: Wait until these offsets are counted, bytes by journal.

    Raises:
        RuntimeError: a shard cannot be served now.
    """
    found: Counter[str] = Counter()
    async with open_channel(member) as channel:
        stub = WordCountServiceStub(channel)
        for shard, journal in zip(COUNT_SHARDS, WORD_JOURNALS, strict=True):
            wanted = [word for word in words if shard_of(word) == shard]
            if words and not wanted:
                continue
            request = ListCountsRequest(shard=shard, words=wanted, limit=limit)
            request.read_through[journal] = read_through[journal]
            answer: ListCountsResponse = await stub.ListCounts(request, timeout=_RPC_SECONDS_MAX)
            if answer.status != Status.OK:
                raise RuntimeError(f"{shard}: {Status.Name(answer.status)}")
            found.update({count.word: count.count for count in answer.counts})
    return Counter(dict(found.most_common(None if words else limit)))


@click.command()
@click.option("--address", envvar="CONSUMER_ADDRESS", default=CONSUMER_ADDRESS_DEFAULT)
@click.option("--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT)
@click.option("--limit", default=10, help="How many words, if none is named.")
@click.argument("words", nargs=-1)
def main(address: str, broker: str, limit: int, words: tuple[str, ...]) -> None:
    """Print counts, the largest first."""
    wanted = [word.lower() for word in words]
    counts = asyncio.run(_ask(address, broker, wanted, limit))
    for word in sorted(wanted or counts, key=lambda word: (-counts[word], word)):
        click.echo(f"{counts[word]:>6}  {word}")


async def _ask(address: str, broker: str, words: Sequence[str], limit: int) -> Counter[str]:
    async with ShardClient(address) as shards:
        published = await words_published(shards, broker)
        for shard, journal in zip(COUNT_SHARDS, WORD_JOURNALS, strict=True):
            await shards.wait_read_through(
                shard, {journal: published[journal]}, timeout_seconds=_RPC_SECONDS_MAX
            )
        # It is the address of a member that has just answered.
        return await counts_of(shards.address, words, limit=limit, read_through=published)


if __name__ == "__main__":
    main()
