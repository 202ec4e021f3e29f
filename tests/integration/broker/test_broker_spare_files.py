"""The broker writes over files of what was removed, and never under a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broadsheet.broker.config import MEBIBYTE, BrokerConfig
from broadsheet.broker.disk import Disk
from broadsheet.broker.free_space import SMALL_BYTES_MAX
from broadsheet.broker.server import Broker
from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import ApplyRequest
from tests.support.broker import journal_spec
from tests.support.eventually import eventually

SIZE = 6 * MEBIBYTE
"""Of each append: worth keeping as a file."""
FLOOR = BrokerConfig(data_dir=Path("unused")).free_space_floor_bytes


class _SmallDisk(Disk):
    """Has no space left while there are spare files, and otherwise as little as SIZE takes."""

    def __init__(self, spare: Path) -> None:
        super().__init__()
        self._spare = spare

    def free_bytes(self, directory: Path) -> int:
        """Return it."""
        return 0 if any(self._spare.iterdir()) else FLOOR + SIZE + SMALL_BYTES_MAX + 1


@asynccontextmanager
async def _running(
    directory: Path, *, disk: Disk | None = None, spare_bytes_max: int = 64 * MEBIBYTE
) -> AsyncIterator[JournalClient]:
    config = BrokerConfig(data_dir=directory, spare_bytes_max=spare_bytes_max)
    async with Broker(config, disk=disk) as broker, JournalClient(broker.address) as client:
        yield client


async def _create(client: JournalClient, *names: str) -> None:
    specs = [journal_spec(name, length=MEBIBYTE) for name in names]
    await client.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=0) for spec in specs])


async def _remove(client: JournalClient, name: str) -> None:
    await client.apply([ApplyRequest.Change(delete=name, expect_mod_revision=-1)])


async def _content(client: JournalClient, name: str) -> bytes:
    return b"".join([bytes(span.content) async for span in client.reader(name, block=False)])


def _spares(directory: Path) -> list[int]:
    """The spare files' inodes."""
    return sorted(path.stat().st_ino for path in (directory / "spare").iterdir())


def _is_removed(directory: Path) -> bool:
    """Whether nothing is left to be done for a removed journal."""
    return not any((directory / "trash").iterdir())


def _inodes(directory: Path) -> list[int]:
    """Those of the files of journals."""
    found = directory.joinpath("journals").rglob("*.*")
    return sorted(path.stat().st_ino for path in found if path.suffix in (".open", ".raw"))


async def test_new_content_goes_into_files_of_removed_journals_and_reads_right(
    tmp_path: Path,
) -> None:
    """Small, then large, over another's content, and after a restart."""
    async with _running(tmp_path) as client:
        await _create(client, "a/old", "a/new")
        for letter in (b"o", b"p"):
            await client.append("a/old", letter * SIZE)
        await _remove(client, "a/old")
        await eventually(lambda: len(_spares(tmp_path)) == 2 and _is_removed(tmp_path))
        spares = _spares(tmp_path)
        expected = b""
        for content in (b"small", b"n" * (SIZE // 2), b"m", b"l" * (2 * SIZE), b"last"):
            await client.append("a/new", content)
            expected += content
            assert await _content(client, "a/new") == expected
        assert set(spares) <= set(_inodes(tmp_path))
        assert _spares(tmp_path) == []
    async with _running(tmp_path) as client:
        assert await _content(client, "a/new") == expected


async def test_a_reader_in_the_middle_of_removed_content_finishes_it(tmp_path: Path) -> None:
    """Its file is not written over: the next append gets another one."""
    async with _running(tmp_path) as client:
        await _create(client, "a/journal")
        for letter in (b"a", b"b", b"c"):
            await client.append("a/journal", letter * SIZE)
        listed = [each.spec for each in await client.list_fragments("a/journal")]
        reader = client.reader("a/journal", block=False)
        async with reader:
            found = bytes((await anext(reader)).content)
            await client.delete_fragments("a/journal", listed[:1])
            # The file is a spare only if all of it is already on its way to the reader.
            await client.append("a/journal", b"d" * SIZE)
            while len(found) < SIZE:
                found += bytes((await anext(reader)).content)
        assert found[:SIZE] == b"a" * SIZE


async def test_deleted_fragments_are_written_over(tmp_path: Path) -> None:
    """Nobody reads them."""
    async with _running(tmp_path) as client:
        await _create(client, "a/journal")
        for letter in (b"a", b"b", b"c"):
            await client.append("a/journal", letter * SIZE)
        listed = [each.spec for each in await client.list_fragments("a/journal")]
        await client.delete_fragments("a/journal", listed[:1])
        (spare,) = _spares(tmp_path)
        await client.append("a/journal", b"d" * SIZE)
        assert (_spares(tmp_path), spare in _inodes(tmp_path)) == ([], True)
        expected = b"b" * SIZE + b"c" * SIZE + b"d" * SIZE
        assert await _content(client, "a/journal") == expected


@pytest.mark.parametrize("is_full", [True, False])
async def test_spare_files_go_when_space_is_short_or_at_a_restart(
    tmp_path: Path, *, is_full: bool
) -> None:
    """An append is not refused for what nobody needs."""
    disk = _SmallDisk(tmp_path / "spare") if is_full else None
    async with _running(tmp_path, disk=disk) as client:
        await _create(client, "a/old", "a/new")
        await client.append("a/old", b"o" * SIZE)
        await _remove(client, "a/old")
        await eventually(lambda: len(_spares(tmp_path)) == 1 and _is_removed(tmp_path))
        if is_full:
            await client.append("a/new", b"small")
            assert _spares(tmp_path) == []
    async with _running(tmp_path):
        assert _spares(tmp_path) == []


async def test_none_are_kept_where_none_are_wanted(tmp_path: Path) -> None:
    """Removed content goes as it came."""
    async with _running(tmp_path, spare_bytes_max=0) as client:
        await _create(client, "a/old")
        await client.append("a/old", b"o" * SIZE)
        await _remove(client, "a/old")
        journals = tmp_path / "journals"
        await eventually(lambda: not any(journals.iterdir()) and _is_removed(tmp_path))
        assert _spares(tmp_path) == []
