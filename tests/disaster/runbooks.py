"""Each runbook of the page on disasters, carried out: `make nightly-disaster`. Too slow for CI."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from broadsheet.journals.client import JournalClient
from tests.support.documents import REPOSITORY, blocks_of, parse_blocks
from tests.support.eventually import eventually
from tests.upgrade.fleet import MEMBERS, SHARDS, ClientReport, Fleet, journal_names
from tests.upgrade.releases import this_release

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(900)]

PAGE: Final = REPOSITORY / "docs" / "deploy" / "disaster.md"
RELEASE: Final = this_release()
LOST_TAIL: Final = "If shards had read what is lost"
_FRAGMENT: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]{40}")


def section(title: str) -> list[str]:
    """Return the commands of a part of the page."""
    parts = re.split(r"^##+ (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True))[title]
    return [block.script for block in parse_blocks(text)]


async def shell(fleet: Fleet, *scripts: str, **variables: str) -> None:
    """Run commands in the fleet's directory, as a reader of the page does."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {
        "PATH": path,
        "CONSUMER_ADDRESS": fleet.members,
        "BROKER_ADDRESS": fleet.broker,
        **variables,
    }
    for script in scripts:
        ran = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-o", "pipefail", "-euc", script],
            cwd=fleet.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{script}\n{ran.stdout}"


@asynccontextmanager
async def loaded(directory: Path, *, file_root: Path | None = None) -> AsyncIterator[Fleet]:
    """Run a cluster that has counted some messages, with a backup of before half of them."""
    with Fleet(directory, file_root=file_root) as fleet:
        await fleet.start_broker(RELEASE)
        await start_members(fleet)
        await fleet.apply()
        await fleet.settle()
        await load(fleet)
        await shell(fleet, "shardctl backup create cluster.jsonl")
        await load(fleet)
        yield fleet


async def start_members(fleet: Fleet) -> None:
    """Start one member after the other."""
    for place in range(MEMBERS):
        await fleet.start_member(RELEASE, place)


async def load(fleet: Fleet) -> None:
    """Publish, and wait until all of it is counted."""
    await fleet.start_client(RELEASE)
    await fleet.stop_client()
    await fleet.echoes()


async def publish_fragments(fleet: Fleet) -> None:
    """Wait until the store has each journal to its end."""
    assert fleet.file_root is not None
    root = fleet.file_root

    async def published() -> bool:
        async with JournalClient(fleet.broker) as journals:
            for name in journal_names():
                head = await journals.write_head(name)
                found = [_FRAGMENT.match(path.name) for path in (root / name).glob("*-*")]
                end = max((int(match[2], 16) for match in found if match), default=0)
                assert end == head, (name, end, head)
        return True

    await eventually(published, interval_seconds=0.2)


def test_page_has_the_commands_of_each_runbook() -> None:
    """A block that loses its mark is a command that no test runs."""
    titles = ("Etcd is lost", "A broker's disk is lost", LOST_TAIL, "A region is lost")
    assert [len(section(each)) for each in titles] == [1, 2, 1, 3]
    assert len(blocks_of(PAGE)) == 7


async def test_etcd_is_lost_and_shards_go_on_from_their_journals(tmp_path: Path) -> None:
    """The backup's hints are old, leases and rollbacks are gone, and revisions begin again: each is counted once."""
    async with loaded(tmp_path) as fleet:
        for place in range(MEMBERS):
            fleet.kill(f"member-{place}")
        fleet.start_etcd()
        await start_members(fleet)
        await shell(fleet, *section("Etcd is lost"))
        await load(fleet)
        await fleet.check_exactly_once()


async def test_disk_of_the_broker_is_lost_and_its_store_has_everything(tmp_path: Path) -> None:
    """Members run on, and take the journals on an empty disk for the same ones."""
    store = tmp_path / "store"
    store.mkdir()
    async with loaded(tmp_path, file_root=store) as fleet:
        await publish_fragments(fleet)
        fleet.kill("broker")
        shutil.rmtree(tmp_path / "broker")
        await fleet.start_broker(RELEASE)
        await shell(fleet, *section("A broker's disk is lost"))
        await load(fleet)
        await fleet.check_exactly_once()


async def test_disk_of_the_broker_is_lost_with_what_was_not_published(tmp_path: Path) -> None:
    """Shards go back to the last commit of the store: what was published until then, and after, is counted once."""
    store = tmp_path / "store"
    store.mkdir()
    async with loaded(tmp_path, file_root=store) as fleet:
        await publish_fragments(fleet)
        kept = list(fleet.reports)
        await load(fleet)
        fleet.kill("broker")
        shutil.rmtree(tmp_path / "broker")
        fleet.reports = kept
        await fleet.start_broker(RELEASE)
        await shell(fleet, *section("A broker's disk is lost")[:1], *section(LOST_TAIL))
        await load(fleet)
        await fleet.check_exactly_once()


async def test_region_is_lost_under_load_and_another_goes_on_from_the_cut(tmp_path: Path) -> None:
    """Producers publish while the cut is made, while it is copied, and until the region is gone. Each message of before
    the cut's end is counted once in the other region; what is lost are the last messages of each source.
    """
    first, second, store = tmp_path / "first", tmp_path / "second", tmp_path / "store"
    copy = second / "store"
    for each in (first, store, copy):
        each.mkdir(parents=True)
    places = {"STORE": str(store), "COPY": str(copy), "COPY_BACKUP": str(second)}
    cut, copied, restored = section("A region is lost")
    async with loaded(first, file_root=store) as fleet:
        before = list(fleet.reports)
        await fleet.start_client(RELEASE)
        await shell(fleet, cut, **places)
        await fleet.settle()
        await shell(fleet, copied, **places)
        await load_further(fleet)
        await fleet.stop_client()
        published = fleet.published()
    with Fleet(second, file_root=copy, clients=fleet.clients) as fleet:
        await fleet.start_broker(RELEASE)
        await start_members(fleet)
        await shell(fleet, restored)
        sources = await fleet.sources()
        for name, keys in sources.items():
            assert keys == published[name][: len(keys)]
            assert len(keys) >= sum(len(report.published[name]) for report in before)
        lost = {name: len(published[name]) - len(keys) for name, keys in sources.items()}
        print(f"lost, messages of each source: {lost}")
        assert min(lost.values()) > 0
        fleet.reports = [ClientReport(sources, 0, 0, [], 0.0)]
        await load(fleet)
        await fleet.check_exactly_once()


async def load_further(fleet: Fleet) -> None:
    """Wait until the client that runs has published what the cut cannot have."""
    async with JournalClient(fleet.broker) as journals:
        heads = {name: await journals.write_head(name) for name in SHARDS.values()}

        async def further() -> bool:
            for name, head in heads.items():
                assert await journals.write_head(name) > head
            return True

        await eventually(further, interval_seconds=0.1)
