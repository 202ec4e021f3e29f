"""Every state that a small world of recorders, players and one log can reach, and what must be true of each."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.explorer import Explored, explore
from tests.support.hand_over_model import Model, World, begin, problem_of, steps


def _explored(model: Model) -> Explored[World]:
    return explore(begin(model), partial(steps, model), partial(problem_of, model))


@pytest.mark.parametrize(
    ("model", "states_min"),
    [
        pytest.param(Model(losses=1), 10_000, id="registers lost, hints stored and stale"),
        pytest.param(Model(losses=1, parts=2), 65_000, id="commits that take two appends"),
        pytest.param(Model(losses=1, commits=2, hints=False), 20_000, id="two commits a life"),
        pytest.param(Model(lives=3, copies=0), 20_000, id="three lives"),
        pytest.param(Model(losses=1, copies=2), 115_000, id="two copies"),
    ],
)
def test_no_state_has_two_commits_or_loses_one(model: Model, states_min: int) -> None:
    """Whatever is late, lost, repeated or out of date: all that anybody relies on is in what everybody recovers, so no
    two primaries can both have made the next commit.
    """
    explored = _explored(model)

    assert not explored.problem, str(explored)
    assert explored.states > states_min, "less happens than this is about"


@pytest.mark.parametrize(
    ("model", "crucial"),
    [
        pytest.param(
            Model(losses=1, copies=0, sees_fence=False),
            "the journal loses its registers",
            id="the fence need not be seen",
        ),
        pytest.param(
            Model(copies=0, demands_fence=False, sees_fence=False),
            "copy 1 of life 1 arrives",
            id="there is no fence",
        ),
        pytest.param(
            Model(fresh_authors=False),
            "life 0 gives up waiting, and hands over again",
            id="a hand-over is repeated word for word",
        ),
    ],
)
def test_protocol_without_one_of_its_rules_loses_a_commit(model: Model, crucial: str) -> None:
    """Each rule is needed: without it the explorer finds a primary that relies on what nobody recovers."""
    explored = _explored(model)

    assert "is what is recovered" in explored.problem
    assert crucial in explored.path, str(explored)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_every_primary_can_get_its_commit_through(first: int, second: int) -> None:
    """The model is not empty: there is a way on which one life commits, and then the other goes on from there."""
    model = Model(copies=0)

    def reached(world: World) -> str:
        lives = world.lives
        done = all(life.believed for life in lives)
        return "reached" if done and lives[first].played < lives[second].played else ""

    assert explore(begin(model), partial(steps, model), reached).problem
