"""Bids: who bids when, where they are published, and the sessions that they make, computed at once.

Half of the bids are of a few bidders who keep on, as in Nexmark; the others come and go.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from broadsheet.journals import (
    JsonType,
    KeyColumn,
    MappedJournal,
    Publisher,
    fnv1a_32,
)

BIDS: Final = "sessions/bids"
CLOSED: Final = "sessions/closed"
JOURNALS: Final = tuple(f"{BIDS}/part-{index:03d}" for index in range(2))
SHARDS: Final = tuple(f"sessions-{index:03d}" for index in range(2))
COLUMNS: Final = "bidder long, price long, at timestamp"
GAP_MS: Final = 10_000
BEGIN_MS: Final = 1_700_000_000_000
"""Event time of the first bid."""
_JSON: Final = JsonType()
_SCHEMA: Final = pa.schema(
    {"bidder": pa.int64(), "price": pa.int64(), "at": pa.timestamp("ms", "UTC")}
)
_BY_BIDDER: Final = KeyColumn(
    "bidder", lambda: [MappedJournal(journal, _JSON.content_type) for journal in JOURNALS]
)


class Bid(NamedTuple):
    """A bid."""

    bidder: int
    price: int
    at_ms: int


class Session(NamedTuple):
    """Bids of one bidder, none of which is more than the gap behind the one before."""

    bidder: int
    bids: int
    highest: int
    begin_ms: int
    end_ms: int
    """The gap behind the last bid."""


def bids(count: int, *, bidders: int, per_second: int, seed: int = 0) -> Iterator[Bid]:
    """Yield random bids in the order of their times; every tenth bidder keeps on bidding."""
    chance = random.Random(seed)
    for number in range(count):
        bidder = 1_000 + chance.randrange(bidders)
        if chance.random() < 0.5:
            bidder -= bidder % 10
        at_ms = BEGIN_MS + number * 1_000 // per_second
        yield Bid(bidder, round(100 * 10 ** chance.uniform(0, 6)), at_ms)


def publish(publisher: Publisher, some: Sequence[Bid]) -> None:
    """Have a publisher publish bids, each bidder's into one journal; they are committed by its acknowledgements."""
    bidders, prices, times = zip(*some, strict=True)
    columns = [pa.array(bidders), pa.array(prices), pa.array(times, pa.timestamp("ms", "UTC"))]
    publisher.publish_batch(_BY_BIDDER, pa.table(columns, schema=_SCHEMA), _JSON)


def shard_of(bidder: int) -> str:
    """Return the id of the shard that has a bidder."""
    return SHARDS[fnv1a_32(str(bidder).encode()) % len(JOURNALS)]


def sessions_of(some: Iterable[Bid]) -> list[Session]:
    """Return the sessions of bids, by bidder and time: what the shards find out bid by bid."""
    by_bidder: dict[int, list[Bid]] = {}
    for bid in some:
        by_bidder.setdefault(bid.bidder, []).append(bid)
    found = []
    for bidder, of_bidder in sorted(by_bidder.items()):
        runs: list[list[Bid]] = []
        for bid in sorted(of_bidder, key=lambda each: each.at_ms):
            if runs and bid.at_ms <= runs[-1][-1].at_ms + GAP_MS:
                runs[-1].append(bid)
            else:
                runs.append([bid])
        found += [
            Session(
                bidder,
                len(run),
                max(bid.price for bid in run),
                run[0].at_ms,
                run[-1].at_ms + GAP_MS,
            )
            for run in runs
        ]
    return found
