"""README of examples/sessions and examples/features, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dev_cluster import running_dev
from tests.support.documents import REPOSITORY, blocks_of, missing_line

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("example", "smaller"),
    [
        ("sessions", {"sessions.bid": "sessions.bid --bids 5000"}),
        ("features", {}),
    ],
)
def test_keyed_example_shows_what_its_readme_says(
    tmp_path: Path, example: str, smaller: dict[str, str]
) -> None:
    """Open sessions are those of all bids so far, and features that are served are those that are trained on: both are
    asked of real members, with fewer bids than the page has.
    """
    start, run = blocks_of(REPOSITORY / "examples" / example / "README.md")
    script, shown = run.script, list(run.shown)
    for text, other in smaller.items():
        assert text in script or any(text in line for line in shown)
        script = script.replace(text, other)
        shown = [line.replace(text, other) for line in shown]

    with running_dev(start.code, tmp_path) as dev:
        ran = dev.shell(script)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert missing_line(tuple(shown), ran.stdout) is None, ran.stdout
