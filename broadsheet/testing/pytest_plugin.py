"""The plugin of pytest, found by its entry point `broadsheet`: the fixture `cluster` and the marker `broadsheet`.

It is imported by every run of pytest where Broadsheet is installed, so it imports nothing before a test asks for the
fixture. `pytest -p no:broadsheet` turns it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broadsheet.testing import TestCluster

_MARKER = (
    "broadsheet(application, shards=None, journals=None, standbys=0, state=None, real=False): "
    "what the fixture `cluster` runs; the arguments are those of broadsheet.testing.TestCluster, by name. Markers of a "
    "test, its class and its module add up, and the innermost wins."
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Keep pytest from rewriting the assertions of this package."""
    del parser
    # It does so for all of a package that brings a plugin. Ours state invariants: rewritten, they tell a test nothing,
    # and each import takes a third longer. There is no public way; where this one is gone, they are rewritten.
    hook = getattr(pluginmanager, "rewrite_hook", None)
    getattr(hook, "_must_rewrite", set()).discard("broadsheet")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    """A cluster of the application that the marker `broadsheet` names; see `broadsheet.testing.TestCluster`."""
    arguments = _arguments(request)
    from broadsheet.testing import TestCluster

    with TestCluster(**arguments) as running:
        yield running


def _arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    # The innermost is first.
    for marker in reversed(list(request.node.iter_markers("broadsheet"))):
        if marker.args:
            pytest.fail(
                f"the marker broadsheet takes arguments by name, e.g. application=…; got {marker.args!r}",
                pytrace=False,
            )
        arguments.update(marker.kwargs)
    if "application" not in arguments:
        pytest.fail(
            "the fixture `cluster` needs an application: write `pytestmark = pytest.mark.broadsheet(application=…)` "
            "into the test module, with the class of your application or a function that makes it",
            pytrace=False,
        )
    return arguments
