"""Streams with the test kit: every step of each is a place to die."""

from __future__ import annotations

from typing import Any

from broadsheet.journals import NDJSON, JsonType, MappedJournal
from broadsheet.keyed import (
    JournalOutput,
    StateOptions,
    StreamApplication,
    count,
    last,
    session,
    stream,
    sum_,
    tumbling,
)
from broadsheet.testing import assert_exactly_once

_STATE = StateOptions(index="memory")
_SIDE = JournalOutput(MappedJournal("late", NDJSON), JsonType())


def _order(user: str, at: int, amount: int) -> dict[str, Any]:
    return {"user": user, "at": at, "amount": amount}


ORDERS = [
    _order("a", 1_000, 1),
    _order("a", 12_000, 4),
    _order("a", 3_000, 8),
    _order("c", 31_000, 16),
    _order("b", 1_000, 32),
]


def windows() -> StreamApplication:
    """Windows with late rows, whose results are added up in a second operator."""
    orders = stream("orders", "user string, at long, amount long", time="at")
    return (
        orders.key_by("user")
        .window(tumbling("10s"), lateness="1s")
        .agg(total=sum_("amount"), n=count())
        .key_by("user")
        .agg(windows=count(), total=last("total"))
        .to("totals", state=_STATE, side=_SIDE)
    )


def joined_sessions() -> StreamApplication:
    """A join of two sources whose pairs are counted in sessions."""
    orders = stream("orders", "user string, at long, amount long", time="at").key_by("user")
    views = stream("views", "who string, seen long", time="seen").key_by("who")
    pairs = orders.join(views, lower="-5s", upper="5s", how="inner", time="met")
    return pairs.key_by("user").window(session("3s")).agg(n=count()).to("totals", state=_STATE)


def test_windows_are_exactly_once() -> None:
    """Windows, corrections, late rows and what a second operator makes of them survive a death at each step."""
    tried = assert_exactly_once(
        windows,
        {"orders": ORDERS},
        shards={"totals": ["orders"]},
        rounds=2,
    )
    assert tried > 10


def test_joined_sessions_are_exactly_once() -> None:
    """Rows that wait for a partner, and pairs that wait for the end of their session, survive a death at each step."""
    views = [{"who": "a", "seen": 1_500}, {"who": "b", "seen": 40_000}]
    tried = assert_exactly_once(
        joined_sessions,
        {"orders": [*ORDERS[:3], _order("b", 41_000, 1)], "views": views},
        shards={"totals": ["orders", "views"]},
        rounds=2,
    )
    assert tried > 10
