"""A broker that may hold few files open: it closes journals that no request uses, and opens them by their next use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broadsheet.broker import journals as broker_journals
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.members import create_journals

NAMES = [f"rest/{index}" for index in range(6)]
ROUNDS = 4


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedBroker]:
    """A broker that keeps two journals open."""
    monkeypatch.setattr(broker_journals, "open_journals_max", lambda: 2)
    async with EmbeddedBroker(tmp_path / "broker") as running:
        yield running


def opened(directory: Path) -> int:
    """Return how many logs of journals this process has open."""
    logs = {str(path.resolve()) for path in directory.rglob("*") if "log" in path.name}
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(str(_target(path)) in logs for path in links)


def _target(link: Path) -> Path:
    try:
        return link.readlink()
    except OSError:  # closed meanwhile
        return Path()


async def test_journals_beyond_the_limit_are_closed_and_opened_again(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A limit of 1,024 open files ended at 500 journals: now it bounds those in use, and nothing is lost or doubled."""
    async with JournalClient(broker.address) as client:
        await create_journals(client, *NAMES)
        for number in range(ROUNDS):
            for name in NAMES:
                await client.append(name, b"%d\n" % number)
        await eventually(lambda: 0 < opened(tmp_path) <= 2)

        wanted = b"".join(b"%d\n" % number for number in range(ROUNDS))
        for name in NAMES:
            assert await client.write_head(name) == len(wanted)
            assert await _read(client, name, len(wanted)) == wanted


async def test_journal_that_a_reader_follows_stays_open(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A reader that waits for more is a use, however long ago it began: it gets what is appended later."""
    async with JournalClient(broker.address) as client, TaskGroup() as group:
        await create_journals(client, *NAMES)
        await client.append(NAMES[0], b"a\n")
        following = group.start_soon(_read(client, NAMES[0], 4), name="follow")
        for name in NAMES[1:]:
            await client.append(name, b"x\n")
        await client.append(NAMES[0], b"b\n")

        assert await following == b"a\nb\n"


async def _read(client: JournalClient, name: str, size: int) -> bytes:
    """Return the first bytes of a journal, waiting for them."""
    content = b""
    async with client.reader(name) as reader:
        async for span in reader:
            content += bytes(span.content)
            if len(content) >= size:
                break
    return content
