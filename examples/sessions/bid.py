"""Bids for a while, and looks at open sessions meanwhile: `python -m broadsheet.examples.sessions.bid`.

Each look has read the bids that were published before it. What it finds is compared with the sessions of all bids so
far, computed at once: a bidder's last session is open until ten seconds, and the watermark's delay, are over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from broadsheet.consumer import CONSUMER_ADDRESS_DEFAULT, KeyedClient, KeyedReadOptions
from broadsheet.examples.sessions.bids import Bid, Session, bids, publish, sessions_of, shard_of
from broadsheet.journals import (
    BROKER_ADDRESS_DEFAULT,
    JournalClient,
    MessageClock,
    Publisher,
    new_producer_id,
)

_BIDS_AT_ONCE = 500
_WATCHED = 1_000
"""A bidder who keeps on bidding."""


async def append(
    journals: JournalClient, publisher: Publisher, some: Sequence[Bid]
) -> dict[str, int]:
    """Publish bids in one transaction; return where it ends in each journal, bytes."""
    publish(publisher, some)
    for each in publisher.take_appends():
        await journals.append(each.journal, each.content)
    ends = {}
    # Only now, because acknowledged messages must be present.
    for intent in publisher.build_ack_intents():
        done = await journals.append(intent.journal, intent.content)
        ends[intent.journal] = done.commit.end
    return ends


async def open_sessions(keyed: KeyedClient, bidder: int, token: dict[str, int]) -> list[Session]:
    """Return the sessions that a bidder has open, of all bids before offsets of their journals."""
    answer = await keyed.get(shard_of(bidder), [(bidder,)], KeyedReadOptions(read_through=token))
    return [_session(row) for row in answer.rows]


def _session(row: Any) -> Session:
    """Return a session from a row as JSON has it: numbers are doubles, and times are text."""
    begin, end = (datetime.fromisoformat(row[name]) for name in ("window_start", "window_end"))
    return Session(
        int(row["bidder"]),
        int(row["bids"]),
        int(row["highest"]),
        round(begin.timestamp() * 1000),
        round(end.timestamp() * 1000),
    )


@click.command()
@click.option("--address", envvar="CONSUMER_ADDRESS", default=CONSUMER_ADDRESS_DEFAULT)
@click.option("--broker", envvar="BROKER_ADDRESS", default=BROKER_ADDRESS_DEFAULT)
@click.option("--bids", "count", default=5_000, help="How many.")
def main(address: str, broker: str, count: int) -> None:
    """Bid, and print the open session of one bidder now and then."""
    some = list(bids(count, bidders=200, per_second=100, seed=int(time.time())))
    asyncio.run(_run(address, broker, some))


async def _run(address: str, broker: str, some: Sequence[Bid]) -> None:
    clock = MessageClock()
    clock.update(time.time())
    publisher = Publisher(clock, new_producer_id())
    right = 0
    async with JournalClient(broker) as journals, KeyedClient(address) as keyed:
        for begin in range(0, len(some), _BIDS_AT_ONCE):
            end = begin + _BIDS_AT_ONCE
            token = await append(journals, publisher, some[begin:end])
            seconds = time.perf_counter()
            found = await open_sessions(keyed, _WATCHED, token)
            seconds = time.perf_counter() - seconds
            last = [each for each in sessions_of(some[:end]) if each.bidder == _WATCHED][-1]
            right += last in found
            click.echo(
                f"bidder {_WATCHED}: {last.bids} bids in the open session, highest {last.highest}, "
                f"answered after {seconds * 1000:.0f} ms"
            )
    click.echo(f"{right} of {-(-len(some) // _BIDS_AT_ONCE)} looks equal the sessions of all bids")


if __name__ == "__main__":
    main()
