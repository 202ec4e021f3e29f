"""examples/stream_sum/README.md, command by command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dev_cluster import running_dev
from tests.support.documents import REPOSITORY, blocks_of, missing_line

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DOCUMENT = REPOSITORY / "examples" / "stream_sum" / "README.md"


def test_stream_sum_readme_shows_what_it_says(tmp_path: Path) -> None:
    """The cluster starts as written, and every stream that is published comes out right."""
    start, run = blocks_of(DOCUMENT)
    assert "--seconds 5" in run.code

    with running_dev(start.code, tmp_path) as dev:
        ran = dev.shell(run.script.replace("--seconds 5", "--seconds 2"))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert missing_line(run.shown, ran.stdout) is None, ran.stdout
