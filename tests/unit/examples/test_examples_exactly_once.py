"""The examples, tested with the kit that they recommend: every step of each is a place to die."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import pytest

from broadsheet.examples.counter.app import Counter
from broadsheet.examples.enrich.app import create as enrich
from broadsheet.examples.flights.app import FlightsApplication
from broadsheet.examples.stream_sum.app import StreamSums
from broadsheet.examples.word_count.app import create as word_count
from broadsheet.testing import TestCluster, assert_exactly_once
from tests.support.documents import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
FLIGHT = {"carrier": "UA", "flight": 1, "origin": "EWR", "scheduled_at": 600, "air_minutes": 60}


def flights() -> FlightsApplication:
    """Keep each shard's aircraft in a SQLite file of the cluster's own."""
    return FlightsApplication(f"sqlite:///{os.environ['BROADSHEET_STATE_DIR']}/{{shard}}.db")


def flight(aircraft: str, departs_at: int, origin: str = "EWR", to: str = "BOS") -> dict[str, Any]:
    """Return a flight of New York's."""
    return FLIGHT | {
        "aircraft": aircraft,
        "departs_at": departs_at,
        "origin": origin,
        "destination": to,
        "late_minutes": 200,
    }


def chunk(stream: str, index: int, data: str, *, eof: bool = False) -> dict[str, Any]:
    """Return a chunk of a stream, its data in base64."""
    return {"stream": stream, "index": index, "data": data, "eof": eof}


def test_counter_is_exactly_once() -> None:
    """Without a recovery log, as its specs are: its files are fenced by their epoch."""
    tried = assert_exactly_once(
        Counter,
        {
            "counter/events/part-000": [{"key": "a"}, {"key": "b"}],
            "counter/events/part-001": [{"key": "c"}],
        },
        shards=EXAMPLES / "counter/shards.yaml",
        journals=EXAMPLES / "counter/journals.yaml",
        rounds=1,
    )
    assert tried > 10


def test_word_count_is_exactly_once_in_both_stages() -> None:
    """Words travel from shards that split lines to shards that count, each with a SQLite file in its log."""
    tried = assert_exactly_once(
        word_count,
        {"word-count/lines/part-000": [{"text": "to be"}]},
        shards={
            "word-count/split-000": ["word-count/lines/part-000"],
            **{f"word-count/count-00{n}": [f"word-count/words/part-00{n}"] for n in range(4)},
        },
        rounds=1,
    )
    assert tried > 15


def test_word_count_runs_on_its_own_specs() -> None:
    """The files that users apply work in a test, standbys and recovery logs included."""
    with TestCluster(
        word_count,
        shards=EXAMPLES / "word_count/shards.yaml",
        journals=EXAMPLES / "word_count/journals.yaml",
    ) as cluster:
        cluster.publish("word-count/lines/part-000", {"text": "to be or not to be"})
        cluster.read_through()
        cluster.kill_primary("word-count/split-000")
        cluster.publish("word-count/lines/part-001", {"text": "Be!"})
        cluster.read_through()

        counts = [
            cluster.query(lambda store: store.most_frequent(9), shard=shard)
            for shard in (f"word-count/count-00{number}" for number in range(4))
        ]
        assert {word: count for each in counts for word, count in each.items()} == {
            "to": 2,
            "be": 3,
            "or": 1,
            "not": 1,
        }


def test_enrich_is_exactly_once() -> None:
    """Batches of payments go into a SQLite file in the recovery log."""
    payments = [
        {"account": name, "cents": cents, "country": "DE"}
        for name, cents in (("ada", 100), ("bob", 50), ("ada", 7))
    ]
    assert assert_exactly_once(enrich, {"enrich/payments/part-000": payments}, rounds=2) > 10


@pytest.mark.parametrize("store", ["json", "sqlite"])
def test_stream_sum_is_exactly_once(store: str) -> None:
    """A sum is published once, when its stream ends, with the streams that are open in either store."""
    tried = assert_exactly_once(
        lambda: StreamSums(store),
        {
            "stream-sum/chunks/part-000": [
                chunk("a", 0, "YQ=="),
                chunk("b", 0, "Yg==", eof=True),
                chunk("a", 1, "Yw==", eof=True),
            ]
        },
        rounds=2,
    )
    assert tried > 15


def test_flights_are_exactly_once_in_a_database() -> None:
    """State in SQL tables is fenced by its row, and written once a transaction from a cache that restores fill."""
    inputs = {
        "flights/departures/part-000": [
            flight("N1", 600),
            flight("N2", 610),
            flight("N1", 1000, "BOS", "EWR"),
        ]
    }
    with ExitStack() as closing:

        def application() -> FlightsApplication:
            made = flights()
            closing.callback(made.close)
            return made

        tried = assert_exactly_once(
            application,
            inputs,
            shards={"flights-000": ["flights/departures/part-000"]},
            journals=EXAMPLES / "flights/journals.yaml",
            state=lambda store: dict(store.aircraft),
            rounds=2,
        )
    assert tried > 15
