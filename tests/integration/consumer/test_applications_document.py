"""docs/applications.md: the application that it shows counts each line once."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.support.documents import REPOSITORY, blocks_of
from tests.support.live_shards import SHARD, ShardHost, counts, spec_of

pytestmark = pytest.mark.etcd


async def test_application_of_the_document_counts_lines_over_a_restart(
    host: ShardHost, tmp_path: Path
) -> None:
    """Somebody copies it: it must work as it stands, with a line that is half written, and after a restart."""
    (block,) = blocks_of(REPOSITORY / "docs" / "applications.md")
    source = tmp_path / "line_counter.py"
    source.write_text(block.code)
    line_counter = runpy.run_path(str(source))["LineCounter"]
    path, states = tmp_path / "lines", tmp_path / "states"
    states.mkdir()
    path.write_bytes(b'{"kind": "a"}\n{"kind": "b"}\n{"ki')
    await host.assign(spec_of(SHARD))

    first = host.start(spec_of(SHARD), line_counter(path, states))
    with first.acquire() as reference:
        await reference.wait_for_offsets({"file/lines": 28})
    await first.stop()
    with path.open("ab") as file:
        file.write(b'nd": "a"}\n')
    second = host.start(spec_of(SHARD), line_counter(path, states))
    with second.acquire() as reference:
        await reference.wait_for_offsets({"file/lines": 42})

    assert await counts(second) == {"a": 2, "b": 1}
