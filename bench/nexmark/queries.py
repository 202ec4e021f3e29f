"""Nexmark's queries as streams, with Flink's parameters.

Source: nexmark/nexmark, nexmark-flink/src/main/resources/queries/*.sql.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bench.nexmark.generator import events
from broadsheet.keyed import (
    Stream,
    col,
    count,
    hopping,
    max_,
    mean,
    session,
    spanning,
    stream,
    tumbling,
    until,
)

DELAY: Final = "4s"
_EMPTY: Final = events(0, 0)


def _persons() -> Stream:
    return stream("persons", _EMPTY.persons.schema, time="dateTime", delay=DELAY)


def _auctions() -> Stream:
    return stream("auctions", _EMPTY.auctions.schema, time="dateTime", delay=DELAY)


def _bids() -> Stream:
    return stream("bids", _EMPTY.bids.schema, time="dateTime", delay=DELAY)


def q0() -> Stream:
    """All bids as they are."""
    return _bids()


def q1() -> Stream:
    """The price in another currency."""
    return _bids().select("auction", "bidder", "dateTime", "extra", price=col("price") * 0.908)


def q2() -> Stream:
    """The bids of some auctions."""
    auction = col("auction")
    # Arrow has no remainder; integers divide towards zero.
    return _bids().where(auction - auction / 123 * 123 == 0).select("auction", "price")


def q3() -> Stream:
    """Sellers of some states with what they sell: an unbounded join."""
    sellers = _persons().where(col("state").isin(["OR", "ID", "CA"]))
    items = _auctions().where(col("category") == 10)
    pairs = (
        items.select("seller", auction="id")
        .key_by("seller")
        .join(sellers.select("id", "name", "city", "state").key_by("id"), lower=None, upper=None)
    )
    return pairs.select("name", "city", "state", "auction")


def _offers(lower: int | str = 0) -> Stream:
    """Bids beside their auction, while it is open."""
    auctions = _auctions().select(
        "id", "category", "seller", "reserve", "expires", opened="dateTime"
    )
    bids = _bids().select("auction", "bidder", "price", at="dateTime")
    return auctions.key_by("id").join(bids.key_by("auction"), lower=lower, upper=until("expires"))


def q4() -> Stream:
    """The average winning price of each category; an auction counts when it has ended."""
    winning = (
        _offers()
        .key_by("id", "category")
        .window(spanning("opened", "expires"))
        .agg(final=max_("price"))
    )
    return winning.key_by("category").agg(average=mean("final"))


def q5(slide: str = "2s") -> Stream:
    """The auctions with the most bids of the last 10 s, every 2 s."""
    counts = _bids().key_by("auction").window(hopping("10s", slide)).agg(num=count())
    return counts.window(spanning("window_start", "window_end")).top(1, by="num", ties=True)


def q7() -> Stream:
    """The highest bids of each 10 s."""
    bids = _bids().select("auction", "bidder", "price", "dateTime")
    return bids.window(tumbling("10s")).top(1, by="price", ties=True)


def _sellers() -> Stream:
    """Persons beside each auction that they opened within the 10 s in which they came."""
    persons = _windowed(_persons().select("id", "name", at="dateTime"))
    sellers = _windowed(_auctions().select("seller", "reserve", at="dateTime"))
    return persons.key_by("id", "slot").join(
        sellers.key_by("seller", "slot"), lower="-10s", upper="10s"
    )


def q8() -> Stream:
    """Persons who opened an auction within the 10 s in which they came."""
    pairs = _sellers().select("id", "name", "slot")
    return pairs.key_by("id", "slot").deduplicate(within="20s")


def _windowed(of: Stream) -> Stream:
    """Add the number of the 10 s that a row is in."""
    ms = col("at").cast("int64")
    return of.with_columns(slot=ms / 10_000)


def q9() -> Stream:
    """The winning bid of each auction, whenever it changes: the highest, then the earliest."""
    return _offers().key_by("id").top(1, by="price")


def q11() -> Stream:
    """Bids of each bidder and session of 10 s."""
    return _bids().select("bidder").key_by("bidder").window(session("10s")).agg(bids=count())


def q12() -> Stream:
    """Bids of each bidder and 10 s of the clock."""
    window = tumbling("10s")
    bids = _bids().select("bidder").key_by("bidder")
    return bids.window(window, time="processing").agg(bids=count())


QUERIES: Final[Mapping[str, Callable[[], Stream]]] = {
    each.__name__: each for each in (q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q12)
}


def _beam_q1() -> Stream:
    """With Beam's rate."""
    return _bids().select("auction", "bidder", price=col("price") * 0.89)


def _beam_q4() -> Stream:
    """With Beam's winners, which reach the reserve, and may have come before the auction; means of 10 s every 5 s."""
    offers = _offers(lower="-1m").where(
        (col("price") >= col("reserve")) & (col("at") < col("expires"))
    )
    winning = (
        offers.key_by("id", "category")
        .window(spanning("opened", "expires"))
        .agg(final=max_("price"))
    )
    return winning.key_by("category").window(hopping("10s", "5s")).agg(average=mean("final"))


def _beam_q8() -> Stream:
    """A row for each auction."""
    return _sellers().select("id", "name", "reserve")


BEAM_QUERIES: Final[Mapping[str, Callable[[], Stream]]] = {
    "q1": _beam_q1,
    "q2": q2,
    "q3": q3,
    "q4": _beam_q4,
    "q5": lambda: q5("5s"),
    "q7": q7,
    "q8": _beam_q8,
    "q11": q11,
}
"""The queries as Beam has them, where it differs from Flink."""
FLINK_K_EVENTS: Final[Mapping[str, int]] = {
    "q4": 34,
    "q5": 22,
    "q7": 12,
    "q8": 146,
    "q11": 40,
    "q12": 76,
}
"""Thousands of events a second and core that the Nexmark project publishes of Flink, on other machines."""
