"""README's first commands: from an empty folder to a counted message, as they stand on the front page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dev_cluster import running_dev
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

README = (REPOSITORY / "README.md").read_text()
INSTALL, DEV = "pip install ", "shardctl dev"


def _blocks(language: str) -> list[str]:
    section = README.partition("## Try it")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_readme_leads_from_an_empty_folder_to_a_counted_message(tmp_path: Path) -> None:
    """A project is made, its test passes, and with README's application in it a published message is counted."""
    first, second, *_ = _blocks("sh")
    lines = [line.partition(" #")[0].rstrip() for line in first.splitlines()]
    assert lines[0].startswith(INSTALL)
    assert lines[-1] == DEV
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = subprocess.run(
        ["bash", "-euc", "\n".join(lines[1:-1])],
        cwd=tmp_path,
        env=os.environ | {"PATH": search_path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "3 passed" in made.stdout
    project = tmp_path / "hello"
    (project / "hello" / "app.py").write_text(_blocks("python")[0])

    publish, read, shards = second.splitlines()
    with running_dev(DEV, project) as dev:
        published = dev.shell(publish)
        eventually_sync(lambda: '{"key":"a","count":1' in dev.shell(read).stdout)
        listed = dev.shell(shards)

    assert published.returncode == 0, published.stderr
    assert "hello/events/part-00" in published.stdout
    assert listed.returncode == 0, listed.stderr
    assert "LAG" in listed.stdout
