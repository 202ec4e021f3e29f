"""README's application: what is on the front page must run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.dev_cluster import running_dev
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

README = (REPOSITORY / "README.md").read_text()
MESSAGES = """'{"key":"a"}' '{"key":"b"}' '{"key":"a"}'"""


def test_readme_application_counts_under_readme_command(tmp_path: Path) -> None:
    """The class, saved as it is, served by the command below it: three messages are counted by key."""
    snippet = re.search(r"```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    command = re.search(r"^shardctl dev .*$", README, re.MULTILINE)
    assert snippet
    assert command
    (tmp_path / "front_page.py").write_text(snippet[1])
    state = tmp_path / "state" / "counter%2Fpart-000" / "state.json"

    with running_dev(
        command[0].replace("broadsheet.examples.counter.app", "front_page"), tmp_path
    ) as dev:
        appended = dev.shell(
            f"printf '%s\\n' {MESSAGES} | shardctl journals append counter/events/part-000 --lines"
        )
        listed = dev.shell("shardctl shards list --lag")
        eventually_sync(lambda: state.exists() and '{"a":2,"b":1}' in state.read_text())

    assert appended.returncode == 0, appended.stderr
    assert listed.returncode == 0, listed.stderr
    assert "LAG" in listed.stdout
