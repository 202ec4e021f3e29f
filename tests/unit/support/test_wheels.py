"""What the nightly run of the built wheel goes by."""

from __future__ import annotations

import sys

from tests.support.documents import REPOSITORY
from tests.wheels.environment import find_python
from tests.wheels.platforms import PLATFORMS
from tests.wheels.project import supported_pythons


def test_each_python_that_the_project_names_is_tried_and_documented() -> None:
    """A classifier is a promise: the wheel is tried there, and README and the page of systems say the same."""
    versions = supported_pythons()

    assert versions[0] == "3.11"
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]
    said = f"{versions[0]} to {versions[-1]}"
    for page in ("README.md", "docs/dependencies.md"):
        assert f"3.11 to {versions[-1]}" in (REPOSITORY / page).read_text(), f"{page} lacks {said}"
    assert {each.partition("-")[0] for each in PLATFORMS} == {"x86_64", "aarch64"}


def test_python_of_this_run_is_found_and_one_that_is_not_there_is_none() -> None:
    """A shim of pyenv is on PATH for versions that it has not."""
    assert find_python(f"{sys.version_info[0]}.{sys.version_info[1]}") is not None
    assert find_python("3.2") is None
