"""The processor of docs/spark-processors.md in `shardctl dev`: a job of Structured Streaming needs no Spark to run."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.support.dev_cluster import running_dev
from tests.support.documents import REPOSITORY, blocks_of
from tests.support.eventually import eventually_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PAGE = REPOSITORY / "docs" / "spark-processors.md"


def test_processor_of_the_page_runs_in_dev_without_a_jvm(tmp_path: Path) -> None:
    """The page's module and its specs, as they are: rows in, and the visit that a later row ends comes out."""
    module, start, publish, *_ = blocks_of(PAGE)
    (tmp_path / "visits.py").write_text(module.code)
    for name in ("journals", "shards"):
        _, _, rest = PAGE.read_text().partition(f"**{name}.yaml**:\n\n```yaml\n")
        (tmp_path / f"{name}.yaml").write_text(rest.partition("```")[0])

    with running_dev(start.code, tmp_path, links=()) as dev:
        published = dev.shell(publish.code)
        assert published.returncode == 0, published.stderr

        def ended() -> list[dict[str, object]]:
            read = dev.shell("shardctl journals read shop/visits --messages")
            assert read.stdout.strip(), (published.stdout, read.stderr)
            return [json.loads(line) for line in read.stdout.splitlines()]

        rows = [
            {name: value for name, value in row.items() if name != "_meta"}
            for row in eventually_sync(ended, timeout_seconds=60)
        ]
        started = psutil.Process(dev.pid).children(recursive=True)
        names = {each.name() for each in started}

    assert rows == [json.loads(line) for line in publish.shown]
    assert "etcd" in names
    assert "java" not in names
