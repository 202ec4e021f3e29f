"""`shardctl journals fragments`, `suspend`, `reset-head` and `prune`, against a broker and its files."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.cli.main import main
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import IndexHasGreaterOffsetError
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec
from tests.support.broker import journal_spec

BLOCK = 2000
NAMES = ["keep/part-000", "keep/part-001"]


async def _run(broker: Broker, *arguments: str) -> Result:
    """Run a command; the broker of this process logs between what it prints."""
    where = ["--broker", broker.address]
    return await asyncio.to_thread(
        lambda: CliRunner().invoke(main, ["journals", *arguments, *where])
    )


async def _fill(client: JournalClient, *specs: JournalSpec, blocks: int) -> None:
    """Create journals, and append blocks that each become a fragment of its own."""
    await client.apply([ApplyRequest.Change(upsert=spec) for spec in specs])
    for spec in specs:
        for number in range(blocks):
            await client.append(spec.name, bytes([65 + number]) * BLOCK)


async def test_fragments_are_listed(tmp_path: Path) -> None:
    """Where a journal begins, how it is cut, and what is stored, as a table and for programs."""
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b")) as broker,
        JournalClient(broker.address) as client,
    ):
        await _fill(client, journal_spec(NAMES[0], length=1024), blocks=3)

        table = await _run(broker, "fragments", NAMES[0])
        recent = await _run(broker, "fragments", NAMES[0], "--since", "1h", "-o", "json")
        unknown = await _run(broker, "fragments", "no/such")

    assert re.search(r"^BEGIN +END +BYTES +CODEC +STORED +STORE$", table.output, re.MULTILINE)
    assert re.search(r"^2000 +4000 +2\.0 kB +NONE +20\S+ +<broker>$", table.output, re.MULTILINE)
    document = json.loads(recent.stdout[recent.stdout.index("{\n") :])
    assert [each["spec"]["begin"] for each in document["fragments"]] == ["0", "2000", "4000"]
    assert unknown.exit_code == 3


async def test_journals_are_suspended_and_resumed_by_an_append(tmp_path: Path) -> None:
    """A journal that was written a moment ago is in use, unless forced; an empty one is suspended at once."""
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "b")) as broker,
        JournalClient(broker.address) as client,
    ):
        await _fill(client, journal_spec(NAMES[0]), blocks=1)
        await _fill(client, journal_spec(NAMES[1]), blocks=0)

        gentle = await _run(broker, "suspend", "-l", "name:prefix=keep/")
        forced = await _run(broker, "suspend", NAMES[0], "--force")
        levels = [each.spec.suspend.level for each in (await client.list()).journals]
        assert levels == [JournalSpec.Suspend.PARTIAL, JournalSpec.Suspend.FULL]
        resumed = await client.append(NAMES[0], b"more")
        level = (await client.get(NAMES[0])).spec.suspend.level

    assert f"{NAMES[0]} in use\n{NAMES[1]} suspended\n" in gentle.output
    assert f"{NAMES[0]} suspended\n" in forced.output
    assert (resumed.commit.begin, level) == (BLOCK, JournalSpec.Suspend.NONE)


async def test_head_is_reset_where_bytes_were_lost(tmp_path: Path) -> None:
    """A file of the broker is gone: appends are refused until an operator accepts the loss. Others are left alone."""
    config = BrokerConfig(data_dir=tmp_path / "b")
    async with Broker(config) as broker, JournalClient(broker.address) as client:
        await _fill(client, journal_spec(NAMES[0], length=1024), blocks=3)
        await _fill(client, journal_spec(NAMES[1], length=1024), blocks=1)
    sorted((tmp_path / "b" / "journals").glob("*/*.raw"))[1].unlink()
    async with Broker(config) as broker, JournalClient(broker.address) as client:
        lossy = NAMES[0]
        with pytest.raises(IndexHasGreaterOffsetError):
            await client.append(lossy, b"x")

        done = await _run(broker, "reset-head", *NAMES)
        assert (await client.append(lossy, b"after")).commit.begin == 3 * BLOCK
        async with client.reader(lossy, block=False) as reader:
            content = b"".join([span.content async for span in reader])

    assert f"{lossy} continues at {3 * BLOCK}\n" in done.output
    assert f"{NAMES[1]} continues at {BLOCK}\n" in done.output
    assert content == b"A" * BLOCK + b"C" * BLOCK + b"after"


async def test_fragments_past_their_retention_are_pruned(tmp_path: Path) -> None:
    """What is older goes, from the beginning; the newest fragment stays, and so does a journal without a retention."""
    config = BrokerConfig(data_dir=tmp_path / "b")
    old, forever = journal_spec(NAMES[0], length=1024), journal_spec(NAMES[1], length=1024)
    old.fragment.retention.FromSeconds(3600)
    async with Broker(config) as broker, JournalClient(broker.address) as client:
        await _fill(client, old, forever, blocks=4)
        day_ago = (await asyncio.to_thread(os.stat, tmp_path)).st_mtime - 86_400
    for file in (tmp_path / "b" / "journals").rglob("*.raw"):
        if not file.name.startswith(f"{2 * BLOCK:016x}"):
            os.utime(file, (day_ago, day_ago))
    async with Broker(config) as broker, JournalClient(broker.address) as client:
        dry = await _run(broker, "prune", "--dry-run")
        assert len(await client.list_fragments(NAMES[0])) == 4
        done = await _run(broker, "prune")
        kept = [each.spec.begin for each in await client.list_fragments(NAMES[0])]
        others = len(await client.list_fragments(NAMES[1]))

    assert re.search(rf"^{NAMES[0]} +1h +4 +2 +4\.0 kB$", dry.output, re.MULTILINE), dry.output
    assert re.search(rf"^{NAMES[0]} +1h +4 +2 +4\.0 kB$", done.output, re.MULTILINE), done.output
    assert (kept, others) == ([2 * BLOCK, 3 * BLOCK], 4)
