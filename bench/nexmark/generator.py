"""Nexmark's events as columns: persons, auctions and bids of an online auction, in the proportions 1 : 3 : 46.

Event n is of the kind of n mod 50, at base + n / rate. Ids count from 1000 by kind. Half of the bids go to the newest
auction whose number is a multiple of 100; three quarters of them, and of the auctions, come from such a person. All is
drawn from one seed, so that two systems get the same events.

Source: nexmark/nexmark, nexmark-flink/…/generator (proportions, hot ids, prices, expiry); Beam's Nexmark has the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

BASE_MS: Final = 1_700_000_000_000
EVENTS_PER_S: Final = 10_000
FIRST_ID: Final = 1000
_CYCLE, _PERSONS, _AUCTIONS = 50, 1, 3
_HOT: Final = 100
"""Every so many ids one is hot."""
_ACTIVE: Final = 1000
"""Persons that still do something: the newest."""
_OPEN: Final = 100
"""Auctions that still get bids: the newest."""
_AHEAD: Final = 10
"""Ids that are named before they are there."""
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST_NAMES: Final = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
_LAST_NAMES: Final = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
)
_CATEGORIES: Final = 5
_FIRST_CATEGORY: Final = 10
_TIME: Final = pa.timestamp("ms", "UTC")
_EXTRA_BYTES: Final = {"persons": 200, "auctions": 500, "bids": 100}


@dataclass(frozen=True, slots=True)
class Events:
    """Events of a stretch of numbers, by kind, in the order of their numbers."""

    persons: pa.Table
    auctions: pa.Table
    bids: pa.Table

    def __len__(self) -> int:
        return len(self.persons) + len(self.auctions) + len(self.bids)


def events(first: int, count: int, *, seed: int = 1, per_second: int = EVENTS_PER_S) -> Events:
    """Return the events first … first + count − 1, of which there are `per_second` in a second of their time."""
    numbers = np.arange(first, first + count)
    chance = np.random.default_rng([seed, first])
    place = numbers % _CYCLE
    return Events(
        _persons(numbers[place < _PERSONS], chance, per_second),
        _auctions(
            numbers[(place >= _PERSONS) & (place < _PERSONS + _AUCTIONS)], chance, per_second
        ),
        _bids(numbers[place >= _PERSONS + _AUCTIONS], chance, per_second),
    )


def _times(numbers: Numbers, per_second: int) -> pa.Array:
    return pa.array(BASE_MS + numbers * 1000 // per_second, pa.int64()).cast(_TIME)


def _last_person(numbers: Numbers) -> Numbers:
    """Return the number of the newest person, from 0, as of each event."""
    return numbers // _CYCLE


def _last_auction(numbers: Numbers) -> Numbers:
    """Return the number of the newest auction, from 0, as of each event; −1 before the first."""
    place = numbers % _CYCLE
    in_cycle = np.clip(place - _PERSONS, -1, _AUCTIONS - 1)
    return numbers // _CYCLE * _AUCTIONS + in_cycle


def _some_person(numbers: Numbers, chance: np.random.Generator) -> Numbers:
    last = _last_person(numbers)
    active = np.minimum(last + 1, _ACTIVE)
    return last + 1 - active + _uniform(chance, active + _AHEAD)


def _uniform(chance: np.random.Generator, ends: Numbers) -> Numbers:
    return np.minimum((chance.random(len(ends)) * ends).astype(np.int64), ends - 1)


def _prices(chance: np.random.Generator, count: int) -> Numbers:
    return np.rint(100 * 10 ** (6 * chance.random(count))).astype(np.int64)


def _chosen(chance: np.random.Generator, of: Any, count: int) -> pa.Array:
    return pa.array(of).take(pa.array(chance.integers(0, len(of), count)))


def _extra(kind: str, chance: np.random.Generator, count: int) -> pa.Array:
    """Return padding of the usual length, 20 % more or less."""
    usual = _EXTRA_BYTES[kind]
    step = usual // 5
    texts = pa.array(["x" * length for length in range(usual - step, usual + step + 1)])
    return texts.take(pa.array(chance.integers(0, len(texts), count)))


def _persons(numbers: Numbers, chance: np.random.Generator, per_second: int) -> pa.Table:
    count = len(numbers)
    names = [f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES]
    return pa.table(
        {
            "id": _last_person(numbers) + FIRST_ID,
            "name": _chosen(chance, names, count),
            "emailAddress": _chosen(chance, [f"{name[:6]}@nexmark.org" for name in names], count),
            "creditCard": _chosen(chance, ["1234 5678 9012 3456", "9876 5432 1098 7654"], count),
            "city": _chosen(chance, _CITIES, count),
            "state": _chosen(chance, _STATES, count),
            "dateTime": _times(numbers, per_second),
            "extra": _extra("persons", chance, count),
        }
    )


def _auctions(numbers: Numbers, chance: np.random.Generator, per_second: int) -> pa.Table:
    count = len(numbers)
    hot = _last_person(numbers) // _HOT * _HOT
    seller = np.where(chance.random(count) < 3 / 4, hot, _some_person(numbers, chance))
    # Until 100 more auctions are opened.
    horizon = _OPEN * _CYCLE // _AUCTIONS * 1000 // per_second
    times = BASE_MS + numbers * 1000 // per_second
    initial = _prices(chance, count)
    return pa.table(
        {
            "id": _last_auction(numbers) + FIRST_ID,
            "itemName": _chosen(chance, [f"item {each}" for each in range(50)], count),
            "description": _chosen(chance, [f"a fine thing {each}" for each in range(50)], count),
            "initialBid": initial,
            "reserve": initial + _prices(chance, count),
            "dateTime": pa.array(times, pa.int64()).cast(_TIME),
            "expires": pa.array(
                times + 1 + chance.integers(0, max(2 * horizon, 1), count), pa.int64()
            ).cast(_TIME),
            "seller": seller + FIRST_ID,
            "category": _FIRST_CATEGORY + chance.integers(0, _CATEGORIES, count),
            "extra": _extra("auctions", chance, count),
        }
    )


def _bids(numbers: Numbers, chance: np.random.Generator, per_second: int) -> pa.Table:
    count = len(numbers)
    last = _last_auction(numbers)
    open_ = np.minimum(last + 1, _OPEN)
    cold = last + 1 - open_ + _uniform(chance, open_ + _AHEAD)
    auction = np.where(chance.random(count) < 1 / 2, last // _HOT * _HOT, cold)
    hot = _last_person(numbers) // _HOT * _HOT + 1
    bidder = np.where(chance.random(count) < 3 / 4, hot, _some_person(numbers, chance))
    return pa.table(
        {
            "auction": auction + FIRST_ID,
            "bidder": bidder + FIRST_ID,
            "price": _prices(chance, count),
            "channel": _chosen(chance, ["Google", "Facebook", "Baidu", "Apple"], count),
            "url": _chosen(chance, [f"https://nexmark.org/{each}" for each in range(100)], count),
            "dateTime": _times(numbers, per_second),
            "extra": _extra("bids", chance, count),
        }
    )
