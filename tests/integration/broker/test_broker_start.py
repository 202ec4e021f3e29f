"""Starts over a data directory that is damaged, went back, or has what the broker does not know."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from click.testing import CliRunner

from broadsheet.broker.__main__ import main
from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.disk import Disk
from broadsheet.broker.errors import BrokerDataError
from broadsheet.broker.quarantine import JournalQuarantine
from broadsheet.broker.server import Broker
from broadsheet.broker.strangers import restore_entry
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import RpcFailedError
from broadsheet.wire.journal_pb2 import ApplyRequest, ListRequest
from tests.support.broker import append, apply_specs, broker_stub, journal_spec, read
from tests.support.shardctl_runs import shardctl

JOURNAL = "a/journal"
P = ParamSpec("P")
T = TypeVar("T")


async def _written(directory: Path) -> None:
    """Make a root with one journal and content."""
    async with (
        Broker(BrokerConfig(data_dir=directory)) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"acknowledged")


def _catalogue(directory: Path) -> Path:
    (path,) = (directory / "catalogue").iterdir()
    return path


def _content(directory: Path) -> list[bytes]:
    """Return what is in fragments below a root, wherever they are."""
    fragments = (path for path in directory.rglob("*") if path.suffix in (".raw", ".open"))
    return [content for content in (path.read_bytes() for path in fragments) if content]


@pytest.mark.parametrize(
    "damage", ["emptied", "last frame", "cut", "older", "removed", "directory"]
)
async def test_damaged_catalogue_refuses_and_removes_nothing(tmp_path: Path, damage: str) -> None:
    """However the catalogue lost what was acknowledged, the start says in one line which file, and what to do."""
    await _written(tmp_path)
    path = _catalogue(tmp_path)
    whole = path.read_bytes()
    if damage == "emptied":
        path.write_bytes(b"")
    elif damage == "last frame":
        end = len(whole.rstrip(b"\0"))
        path.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
    elif damage == "cut":
        path.write_bytes(whole[: len(whole.rstrip(b"\0")) - 1])
    elif damage == "older":
        # A copy of before the journal was applied.
        path.write_bytes(whole[: whole.index(JOURNAL.encode()) - 40])
    elif damage == "removed":
        path.unlink()
    else:
        shutil.rmtree(path.parent)

    with pytest.raises(BrokerDataError, match=r"catalogue.* --accept-catalogue-loss") as caught:
        await _written(tmp_path)

    assert "\n" not in str(caught.value)
    assert _content(tmp_path) == [b"acknowledged"]
    assert not JournalQuarantine(Disk(), tmp_path).entries()


async def test_accepted_loss_quarantines_what_the_catalogue_lacks(tmp_path: Path) -> None:
    """With the option the broker starts; the journal is aside, under its name, and revisions go on from above."""
    await _written(tmp_path)
    before = max(int(path.name.split("-")[0]) for path in (tmp_path / "journals").iterdir())
    _catalogue(tmp_path).write_bytes(b"")

    config = BrokerConfig(data_dir=tmp_path, accept_catalogue_loss=True)
    for listed in ([], ["b/journal"]):  # The option does nothing where nothing is wrong.
        async with Broker(config) as broker, broker_stub(broker.address) as stub:
            answers = [answer async for answer in stub.List(ListRequest())]
            assert [each.spec.name for answer in answers for each in answer.journals] == listed
            response = await apply_specs(stub, journal_spec("b/journal"))
            assert response.header.etcd.revision > before

    kept = {
        each.reason.journal: each.reason for each in JournalQuarantine(Disk(), tmp_path).entries()
    }
    assert set(kept) == {"", JOURNAL}
    assert kept[JOURNAL].why == "the catalogue names no such journal"
    assert kept[""].path == "catalogue"
    assert _content(tmp_path / "quarantine") == [b"acknowledged"]


async def test_torn_last_transaction_starts_by_itself(tmp_path: Path) -> None:
    """A transaction that was cut off while it was written was never acknowledged: no operator is needed."""
    await _written(tmp_path)
    path = _catalogue(tmp_path)
    whole = path.read_bytes()
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        await apply_specs(stub, journal_spec("later"))
    path = _catalogue(tmp_path)
    whole = path.read_bytes()
    last = whole.rindex(b"\xb1\x57\x6c\x9e")
    assert b"later" in whole[last:]

    path.write_bytes(whole[: last + 20] + bytes(len(whole) - last - 20))
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        assert (await read(stub, JOURNAL)).content == b"acknowledged"


async def test_strangers_are_quarantined_and_acknowledged_deletions_are_finished(
    tmp_path: Path,
) -> None:
    """A deletion that a crash cut short is finished, because the log has it; what nobody named is kept."""
    await _written(tmp_path)
    (directory,) = (tmp_path / "journals").iterdir()
    shutil.copytree(directory, tmp_path / "crashed")
    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        await stub.Apply(
            ApplyRequest(changes=[ApplyRequest.Change(delete=JOURNAL, expect_mod_revision=-1)])
        )
    (tmp_path / "crashed").rename(directory)
    (tmp_path / "journals" / "notes.txt").write_text("mine")
    (tmp_path / "journals" / "7-0123456789abcdef").mkdir()

    async with Broker(BrokerConfig(data_dir=tmp_path)):
        assert not any((tmp_path / "journals").iterdir())

    kept = {each.reason.path for each in JournalQuarantine(Disk(), tmp_path).entries()}
    assert kept == {"journals/notes.txt", "journals/7-0123456789abcdef"}


@pytest.mark.parametrize("name", ["FORMAT", "IDENTITY", "BOOT"])
async def test_missing_or_damaged_root_files_are_named(tmp_path: Path, name: str) -> None:
    """Without one of its small files a root is not begun again, and a flipped bit in one is not believed."""
    await _written(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 7)
        (tmp_path / name).write_bytes(flipped)
        with pytest.raises(BrokerDataError, match=name):
            async with Broker(BrokerConfig(data_dir=tmp_path)):
                pass
    (tmp_path / name).unlink()
    with pytest.raises(BrokerDataError, match=name):
        async with Broker(BrokerConfig(data_dir=tmp_path)):
            pass
    assert _content(tmp_path) == [b"acknowledged"]


async def test_root_files_of_a_later_release_are_read_and_keep_what_it_added(
    tmp_path: Path,
) -> None:
    """After a roll-back an earlier release starts on files with unknown fields, and drops none of them."""
    await _written(tmp_path)
    for name in ("IDENTITY", "BOOT"):
        fields = json.loads((tmp_path / name).read_bytes())
        (tmp_path / name).write_text(json.dumps({**fields, "later": [1]}))

    assert _content(tmp_path) == [b"acknowledged"]
    async with Broker(BrokerConfig(data_dir=tmp_path)):
        pass
    assert [
        json.loads((tmp_path / name).read_bytes())["later"] for name in ("IDENTITY", "BOOT")
    ] == [
        [1],
        [1],
    ]
    fields = json.loads((tmp_path / "IDENTITY").read_bytes())
    (tmp_path / "IDENTITY").write_text(json.dumps({**fields, "min_reader": 2}))
    with pytest.raises(BrokerDataError, match="a later release wrote it"):
        async with Broker(BrokerConfig(data_dir=tmp_path)):
            pass


class _SpentDisk(Disk):
    """A disk that can start no thread any more, once it is told."""

    is_spent = False

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.is_spent:
            raise RuntimeError("can't start new thread")
        return await super().run(function, *args, **kwargs)


async def test_broker_whose_stop_fails_on_its_way_gives_the_directory_back(tmp_path: Path) -> None:
    """Each step of a stop is tried: a journal that cannot be closed must not leave the lock and the ports taken, in a
    process that goes on.
    """
    disk = _SpentDisk()
    broker = Broker(BrokerConfig(data_dir=tmp_path, admin_port=0), disk=disk)
    await broker.__aenter__()
    async with broker_stub(broker.address) as stub:
        await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"acknowledged")
    disk.is_spent = True

    with pytest.raises(RuntimeError, match="new thread"):
        await broker.stop()

    async with Broker(BrokerConfig(data_dir=tmp_path)) as again, broker_stub(again.address) as stub:
        assert (await read(stub, JOURNAL)).chunks == [(0, b"acknowledged")]
    assert not broker.admin_address


async def test_quarantined_journal_is_listed_restored_and_served(tmp_path: Path) -> None:
    """An operator who lost the catalogue gets every journal back: accept, apply its spec, stop, restore."""
    await _written(tmp_path)
    _catalogue(tmp_path).write_bytes(b"")
    async with (
        Broker(BrokerConfig(data_dir=tmp_path, accept_catalogue_loss=True)) as broker,
        broker_stub(broker.address) as stub,
        JournalClient(broker.address) as client,
    ):
        entries = await client.list_quarantine()
        listed = await asyncio.to_thread(
            shardctl, f"shardctl journals quarantined --broker {broker.address}"
        )
        (catalogue,) = [each.id for each in entries if each.path == "catalogue"]
        await client.purge_quarantine(catalogue)
        with pytest.raises(RpcFailedError, match="there is no"):
            await client.purge_quarantine(catalogue)
        # A running broker holds the lock.
        with pytest.raises(BrokerDataError, match="stop that one first"):
            restore_entry(tmp_path, entries[0].id)
        await apply_specs(stub, journal_spec(JOURNAL))
        await append(stub, JOURNAL, b"since")
    (entry,) = [each for each in entries if each.journal == JOURNAL]
    listing = CliRunner().invoke(main, ["--data-dir", str(tmp_path), "--list-quarantine"])
    restored = CliRunner().invoke(
        main, ["--data-dir", str(tmp_path), "--restore-quarantined", entry.id]
    )

    async with (
        Broker(BrokerConfig(data_dir=tmp_path)) as broker,
        broker_stub(broker.address) as stub,
    ):
        assert (await read(stub, JOURNAL)).content == b"acknowledged"
    assert entry.id in listed.stdout
    assert entry.id in listing.stdout
    assert restored.exit_code == 0
    # What was at its place is aside now.
    assert b"since" in _content(tmp_path / "quarantine")
