"""The way of a message through this code, as docs/architecture.md lists it, beside the files that messages cross."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from tests.support import live_shards
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually
from tests.support.live_shards import OUTPUT, SHARD, SOURCE, Counting, spec_of
from tests.support.members import create_journals

pytestmark = pytest.mark.etcd

MESSAGES = 6
"""What happens beside a message, now and then, is not seen with each of so many."""
Progress = tuple[Mapping[str, int], Mapping[str, int]]
_SHARED = ("runtime/", "wire/", "security/", "serving/")
"""What is in `broadsheet/` itself."""
_PACKAGES = ("allocator/", "journals/", "consumer/", *_SHARED)
_BEGIN = "## The way of a message"
_SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w/]+\.py)`")


class Crossed:
    """The files of ours whose functions are called while something is watched, in the order of their first calls."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self._watching = False

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """Hear of calls on this thread, and on those that start from now on."""
        before, before_thread = sys.getprofile(), threading.getprofile()
        sys.setprofile(self._on_event)
        threading.setprofile(self._on_event)
        try:
            yield
        finally:
            threading.setprofile(before_thread)
            sys.setprofile(before)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Forget what was seen, and note calls."""
        self.files.clear()
        self._watching = True
        try:
            yield
        finally:
            self._watching = False

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Hear of no call on this thread: the test itself calls."""
        sys.setprofile(None)
        try:
            yield
        finally:
            sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if self._watching and event == "call":
            name = frame.f_code.co_filename.removeprefix(f"{REPOSITORY}/broadsheet/")
            if name.startswith(_PACKAGES):
                self.files[f"broadsheet/{name}" if name.startswith(_SHARED) else name] = None


@asynccontextmanager
async def _publishing(broker: str) -> AsyncIterator[Callable[[], None]]:
    """Yield what has another process publish a message."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.publishing_process", broker, SOURCE),
        stdin=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    assert process.stdin is not None
    lines = process.stdin
    try:
        yield lambda: lines.write(b"key\n")
    finally:
        lines.close()
        assert await process.wait() == 0


async def _crossed_by_each_message(
    host: live_shards.ShardHost, broker: str, application: Counting
) -> list[str]:
    """Return the files that every one of some messages crosses, in order, until its transaction has ended."""
    crossed = Crossed()
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    by_all: list[str] = []
    async with _publishing(broker) as publish:
        with crossed.profiling():
            shard = host.start(spec, application)
            for number in range(1 + MESSAGES):
                before = shard.progress()
                with crossed.watching():
                    publish()
                    await eventually(
                        partial(_has_advanced, shard, before, application.output, crossed)
                    )
                if number:
                    by_all = [name for name in crossed.files if number == 1 or name in by_all]
            await shard.stop()
    return by_all


def _has_advanced(shard: LiveShard, before: Progress, output: str, crossed: Crossed) -> bool:
    """Return whether the shard tells of a newer transaction that is committed and, if it published, acknowledged."""
    with crossed.looking_away():
        read, published = shard.progress()
    return read != before[0] and (not output or published != before[1])


def _listed() -> dict[str, list[str]]:
    """Return the files that the document lists, by heading, in its order."""
    text = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    return {
        heading: _FILE.findall(body)
        for heading, body in _SECTION.findall(text.partition(_BEGIN)[2])
    }


@pytest.mark.parametrize("output", ["", OUTPUT], ids=["consumes", "publishes"])
async def test_document_lists_the_files_that_a_message_crosses(
    output: str, etcd: EtcdClient, etcd_root: str, tmp_path: Path
) -> None:
    """What each message crosses is listed, and what is listed is crossed."""
    with EmbeddedBrokerProcess(tmp_path / "broker") as broker:
        async with JournalClient(broker.address) as journals, AsyncExitStack() as stack:
            await create_journals(journals, *live_shards.JOURNALS)
            host = await stack.enter_async_context(
                live_shards.running_host(etcd, etcd_root, journals)
            )
            crossed = await _crossed_by_each_message(
                host, broker.address, Counting(tmp_path, output=output)
            )
    listed = _listed()
    expected = {*listed["From bytes to commit"], *(listed["If it publishes"] if output else ())}
    assert [name for name in crossed if name not in expected] == [], "crossed, but not listed"
    assert sorted(expected - set(crossed)) == [], "listed, but not crossed"
