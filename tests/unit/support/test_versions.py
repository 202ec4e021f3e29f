"""The sets of versions that `make test-versions` tries."""

from __future__ import annotations

import tomllib

from tests.support.documents import REPOSITORY
from tests.versions import HELD_BACK_BY, NEED_THEM, SETS, requirements, tools


def test_newest_set_has_every_requirement_except_those_that_hold_others_back() -> None:
    """A dependency that is added is tried as well, and what was left out is still a dependency of ours."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = {*project["dependencies"]}.union(*project["optional-dependencies"].values())
    others = {each for each in named if not each.startswith(f"{project['name']}[")}

    left_out = others - {*requirements(SETS[0]), *tools()}

    assert sorted(each.partition("==")[0].partition(">")[0] for each in left_out) == [*HELD_BACK_BY]
    assert all((REPOSITORY / each).exists() for each in NEED_THEM)


def test_set_beside_other_programs_has_nothing_of_spark() -> None:
    """Without Spark nothing of ours may keep a program from pandas 3 and protobuf 7."""
    beside = next(each for each in SETS if each.name == "beside")

    found = requirements(beside)

    assert {*beside.beside} <= {*found}
    assert not [each for each in found if each.startswith(("pyspark", "ortools"))]
