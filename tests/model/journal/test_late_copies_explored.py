"""Every course that copies of a writer's appends can take, and that none lands behind what was sent after it."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.explorer import Explored, explore
from tests.support.late_copies_model import Model, World, problem_of, steps


def _explored(model: Model) -> Explored[World]:
    return explore(World(), partial(steps, model), problem_of)


@pytest.mark.parametrize(
    ("model", "states_min"),
    [
        pytest.param(Model(appends=3, copies=5), 1_000, id="three appends, five copies"),
        pytest.param(Model(appends=2, copies=5), 1_000, id="two appends, five copies"),
        pytest.param(Model(appends=3, copies=5, others=2), 10_000, id="another writer"),
    ],
)
def test_no_copy_lands_behind_a_later_append(model: Model, states_min: int) -> None:
    """Whatever is lost or late: the journal holds the appends in their order, and all that the writer believes."""
    explored = _explored(model)

    assert not explored.problem, str(explored)
    assert explored.states > states_min, "less happens than this is about"


def test_without_a_register_a_copy_lands_behind_a_later_append() -> None:
    """The register is needed: the explorer finds the shortest course to a journal out of order."""
    explored = _explored(Model(appends=2, copies=3, fenced=False))

    assert explored.problem == "the journal holds (0, 1, 0)", str(explored)
    assert "append 0 is in doubt, and sent again" in explored.path


@pytest.mark.parametrize("others", [0, 1])
def test_writer_can_get_everything_through(others: int) -> None:
    """The model is not empty: there is a way on which a copy is in doubt and all appends land."""
    model = Model(appends=2, copies=3, others=others)

    def reached(world: World) -> str:
        done = world.append == model.appends and world.sent == model.copies
        return "reached" if done and world.others == others else ""

    assert explore(World(), partial(steps, model), reached).problem
