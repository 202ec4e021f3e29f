"""Purchases that shards score: each counted once, and answered as a replay of all of them says."""

from __future__ import annotations

import pytest

from broadsheet.consumer.commands import CommandRefusedError
from broadsheet.examples.fraud.app import create
from broadsheet.examples.fraud.replay import replayed
from broadsheet.examples.fraud.rules import Profile, Purchase, Score, score
from broadsheet.testing import Step, TestCluster
from tests.support.documents import REPOSITORY

JOURNAL = "fraud/commands/part-000"


def purchase(second: int, cents: int = 100, country: str = "DE") -> Purchase:
    """Return a purchase with the one card."""
    return Purchase("card-1", cents, country, at_ms=1000 * second)


def test_purchase_unlike_those_before_scores_higher() -> None:
    """Each rule adds its points, by what the card did before and never by the purchase itself."""
    profile = Profile()
    scores = []
    for each in (purchase(0), purchase(60), purchase(120), purchase(121, 9_000, "US")):
        profile, answer = score(profile, each)
        scores.append(answer.score)
    assert scores == [0, 0, 0, 100]
    assert answer == Score(100, 4, 9_300)


@pytest.mark.parametrize("step", [Step.CONSUMED, Step.COMMIT_SENT, Step.COMMITTED])
def test_answers_equal_a_replay_though_primaries_die(step: Step) -> None:
    """The shard's counters, and what callers were told, are those of one loop over the command journal."""
    app = create()
    told = {}
    with TestCluster(
        create,
        shards=REPOSITORY / "examples/fraud/shards.yaml",
        journals=REPOSITORY / "examples/fraud/journals.yaml",
    ) as cluster:
        for number in range(4):
            if number % 2:
                cluster.kill_primary("fraud/scores-000", after=step)
            told[f"id-{number}"] = cluster.command(
                app.commands,
                purchase(number * 8, 100 * (number + 1)),
                command_id=f"id-{number}",
                shard="fraud/scores-000",
            )
        with pytest.raises(CommandRefusedError, match="cents: expected a positive number, got 0"):
            cluster.command(app.commands, purchase(99, 0), shard="fraud/scores-000")
        profiles, answers = replayed(cluster.published(JOURNAL))
        kept = cluster.query(_profile, shard="fraud/scores-000")
    assert told == answers
    assert kept == profiles["card-1"]


def _profile(store: object) -> Profile:
    row = store.connection.execute(  # type: ignore[attr-defined]  # The example's own store.
        "SELECT purchases, cents_total, last_country, last_at_ms FROM cards WHERE card = 'card-1'"
    ).fetchone()
    return Profile(*row)
