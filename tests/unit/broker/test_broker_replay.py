"""What a log says of bytes that are elsewhere: believed if their checksum says so, of whatever kind it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from broadsheet.broker.commit_log import Checkpoint, Commit
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk
from broadsheet.broker.replay import Log, replay

CONTENT = b"some content\n" * 20_000
SHA1 = hashlib.sha1(CONTENT, usedforsecurity=False).digest()


def _log(checksum: bytes) -> Log:
    commit = Commit(2, 100, 100 + len(CONTENT), ((len(CONTENT), checksum),), 0, b"r", False, None)
    checkpoint = Checkpoint(1, 100, b"", False, (), 100, True, "boot")
    return Log(checkpoint=checkpoint, commits=(commit,), reserved=100, sequence=2, damage=())


@pytest.fixture
def file(tmp_path: Path) -> ContentFile:
    """An open fragment with the content."""
    path = tmp_path / "open"
    path.write_bytes(CONTENT)
    return ContentFile.open_growing(path)


@pytest.mark.parametrize(
    "checksum", [xxh3_128_digest(CONTENT), SHA1], ids=["XXH3", "SHA-1 of an earlier version"]
)
def test_bytes_with_their_checksum_are_there(file: ContentFile, checksum: bytes) -> None:
    """A broker opens what an earlier version wrote."""
    found = replay(Disk(), _log(checksum), file, lost_power=False)

    assert found.spans == ((100, 100 + len(CONTENT)),)
    assert (found.end, found.registers, found.damage) == (100 + len(CONTENT), b"r", ())


@pytest.mark.parametrize(
    "checksum",
    [xxh3_128_digest(b"others"), bytes(20)],
    ids=["of other bytes", "no SHA-1"],
)
def test_bytes_with_another_checksum_are_not_served(file: ContentFile, checksum: bytes) -> None:
    """After a loss of power, what was not synced may be gone and is dropped; else its loss is declared."""
    dropped = replay(Disk(), _log(checksum), file, lost_power=True)
    declared = replay(Disk(), _log(checksum), file, lost_power=False)

    assert (dropped.spans, dropped.end, dropped.registers) == ((), 100, b"")
    assert (declared.spans, declared.end) == ((), 100 + len(CONTENT))
    assert declared.damage == (f"bytes [100, {100 + len(CONTENT)}) fail their checksum",)
    assert declared.unconfirmed


def test_a_log_of_a_later_version_is_left_alone(file: ContentFile) -> None:
    """It is not known whether its bytes are there: to drop them might drop what was acknowledged."""
    with pytest.raises(OSError, match=r"batch 2 has a checksum of 32 bytes, .* version that wrote"):
        replay(Disk(), _log(bytes(32)), file, lost_power=False)

    assert file.read(len(CONTENT), 0) == CONTENT
