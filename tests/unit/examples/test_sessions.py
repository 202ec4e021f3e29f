"""Bids by bidder and session: open sessions, and those that ended, are those of all bids computed at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from broadsheet.examples.sessions.app import create
from broadsheet.examples.sessions.bids import (
    CLOSED,
    GAP_MS,
    JOURNALS,
    SHARDS,
    Bid,
    Session,
    bids,
    sessions_of,
    shard_of,
)
from broadsheet.testing import Step, TestCluster
from tests.support.documents import REPOSITORY

EXAMPLE = REPOSITORY / "examples/sessions"


def message(bid: Bid) -> dict[str, Any]:
    """Return a bid as JSON."""
    at = datetime.fromtimestamp(bid.at_ms / 1000).astimezone()
    return {"bidder": bid.bidder, "price": bid.price, "at": at.isoformat()}


def session(row: dict[str, Any]) -> Session:
    """Return a session that was emitted, or is open."""
    begin, end = (
        value if isinstance(value, datetime) else datetime.fromisoformat(value)
        for value in (row["window_start"], row["window_end"])
    )
    times = (round(each.timestamp() * 1000) for each in (begin, end))
    return Session(row["bidder"], row["bids"], row["highest"], *times)


def test_bids_exactly_a_gap_apart_are_one_session() -> None:
    """The reference must have the rule of the query, or the comparison below would prove nothing."""
    found = sessions_of([Bid(1, 5, 0), Bid(1, 9, GAP_MS), Bid(1, 7, 2 * GAP_MS + 1), Bid(2, 1, 3)])
    assert found == [
        Session(1, 2, 9, 0, 2 * GAP_MS),
        Session(1, 1, 7, 2 * GAP_MS + 1, 3 * GAP_MS + 1),
        Session(2, 1, 1, 3, GAP_MS + 3),
    ]


def test_open_and_closed_sessions_equal_those_of_all_bids_though_a_primary_dies() -> None:
    """Each session is open or was emitted, once, whatever happened between: what a query of a bidder shows is what a
    batch over all bids says of the sessions that the watermark has not passed.
    """
    some = list(bids(400, bidders=40, per_second=10, seed=7))
    with TestCluster(
        create, shards=EXAMPLE / "shards.yaml", journals=EXAMPLE / "journals.yaml"
    ) as cluster:
        for number, begin in enumerate(range(0, len(some), 100)):
            if number == 3:
                cluster.kill_primary(SHARDS[0], after=Step.COMMITTED)
            for journal, shard in zip(JOURNALS, SHARDS, strict=True):
                part = [bid for bid in some[begin : begin + 100] if shard_of(bid.bidder) == shard]
                cluster.publish(journal, *map(message, part))
            cluster.read_through()
        closed = [session(row) for row in cluster.published(CLOSED)]
        opened = [
            session(row)
            for shard in SHARDS
            for row in cluster.query(
                lambda store: store.queries.scan("").table.to_pylist(), shard=shard
            )
        ]
        bidder = opened[0].bidder
        looked = cluster.query(
            lambda store: store.queries.get("", [(bidder,)]).table.to_pylist(),
            shard=shard_of(bidder),
        )
    assert sorted(closed + opened) == sorted(sessions_of(some))
    assert closed
    assert [session(row) for row in looked] == [
        each for each in sorted(opened) if each.bidder == bidder
    ]
