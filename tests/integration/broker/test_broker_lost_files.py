"""A broker whose files were lost while it was away: nothing that is gone is taken for something that is new."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broadsheet.broker.data_root import incarnation_name
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import IndexHasGreaterOffsetError
from broadsheet.wire.journal_pb2 import ApplyRequest
from tests.support.broker import journal_spec

KEPT, LOST, EMPTY = "a/kept", "a/lost", "a/never-used"


async def _filled(data_dir: Path) -> dict[str, Path]:
    """Append to journals, and stop; return their directories."""
    async with EmbeddedBroker(data_dir) as broker, JournalClient(broker.address) as client:
        for name in (KEPT, LOST, EMPTY):
            await client.apply([ApplyRequest.Change(upsert=journal_spec(name))])
        for name in (KEPT, LOST):
            await client.append(name, b"acknowledged\n")
        listed = {each.spec.name: each.create_revision for each in (await client.list()).journals}
    journals = data_dir / "journals"
    return {name: journals / incarnation_name(name, listed[name]) for name in listed}


async def test_broker_without_a_journals_directory_refuses_appends_until_its_head_is_reset(
    tmp_path: Path,
) -> None:
    """A partial restore or a missing mount: the journal goes on behind what it held, once an operator accepts that."""
    directories = await _filled(tmp_path / "data")
    shutil.rmtree(directories[LOST])

    for _ in range(2):  # The refusal outlives a restart.
        async with (
            EmbeddedBroker(tmp_path / "data") as broker,
            JournalClient(broker.address) as client,
        ):
            assert await client.write_head(LOST) == len(b"acknowledged\n")
            with pytest.raises(IndexHasGreaterOffsetError):
                await client.append(LOST, b"not yet\n")
            assert (await client.append(KEPT, b"goes on\n")).commit.begin >= len(b"acknowledged\n")
            assert (await client.append(EMPTY, b"")).commit.begin == 0
    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        await client.reset_head(LOST)
        answer = await client.append(LOST, b"accepted\n")
        assert answer.commit.begin == len(b"acknowledged\n")


async def test_broker_with_emptied_journals_takes_no_append_at_an_offset_that_was_used(
    tmp_path: Path,
) -> None:
    """All directories are gone, and the catalogue is there: only a journal that never had one is new."""
    await _filled(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "journals")

    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        for name in (KEPT, LOST):
            with pytest.raises(IndexHasGreaterOffsetError):
                await client.append(name, b"not yet\n")
        assert (await client.append(EMPTY, b"first\n")).commit.begin == 0


async def test_broker_that_was_killed_after_a_first_append_knows_that_the_journal_was_there(
    tmp_path: Path,
) -> None:
    """That a journal has a directory is noted before its first append is answered, not with the heads at a stop."""
    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        await client.apply([ApplyRequest.Change(upsert=journal_spec(LOST))])
        await client.append(LOST, b"acknowledged\n")
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "journals")

    async with (
        EmbeddedBroker(tmp_path / "killed") as broker,
        JournalClient(broker.address) as client,
    ):
        with pytest.raises(IndexHasGreaterOffsetError):
            await client.append(LOST, b"not yet\n")
        await client.reset_head(LOST)
        assert (await client.append(LOST, b"accepted\n")).commit.begin > 0


async def test_broker_with_a_journal_that_was_made_again_forgets_the_deleted_one(
    tmp_path: Path,
) -> None:
    """A journal that is deleted and applied again is new: what is remembered is of one incarnation."""
    await _filled(tmp_path / "data")
    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        await client.apply([ApplyRequest.Change(delete=LOST, expect_mod_revision=-1)])
        await client.apply([ApplyRequest.Change(upsert=journal_spec(LOST))])
    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        assert (await client.append(LOST, b"first\n")).commit.begin == 0


async def test_broker_with_an_older_copy_of_a_journal_refuses_appends(tmp_path: Path) -> None:
    """A directory that was restored from a backup verifies as a whole, and ends before what was acknowledged."""
    directories = await _filled(tmp_path / "data")
    shutil.copytree(directories[KEPT], tmp_path / "backup")
    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        head = (await client.append(KEPT, b"after the backup\n")).commit.end
    shutil.rmtree(directories[KEPT])
    shutil.copytree(tmp_path / "backup", directories[KEPT])

    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        assert await client.write_head(KEPT) == head
        with pytest.raises(IndexHasGreaterOffsetError):
            await client.append(KEPT, b"not yet\n")
