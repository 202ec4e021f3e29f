"""Files as a player makes them on the disk: staged, linked to their paths, and nothing beside them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from broadsheet.consumer.errors import RecoveryLogError
from broadsheet.consumer.recoverylog.playback import CreateFile, FileChange, RemoveFile, WriteFile
from broadsheet.consumer.recoverylog.standby_files import (
    BUFFERS_MAX,
    DESCRIPTORS_MAX,
    STAGING,
    PlayedFiles,
)
from tests.support.recorded_ops import LOG, FileLog, OpChain


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the files of a test go."""
    return tmp_path / "shard"


@pytest.fixture
def files(directory: Path) -> PlayedFiles:
    """Files about to be played."""
    played = PlayedFiles(directory, LOG)
    played.prepare()
    return played


def write(fnode: int, offset: int, content: bytes) -> WriteFile:
    """Return a change."""
    return WriteFile(fnode, offset, memoryview(content))


def open_below(directory: Path) -> int:
    """Return how many files of a directory this process has open."""
    opened = psutil.Process().open_files()
    return sum(each.path.startswith(f"{directory}/") for each in opened)


def test_files_are_staged_by_number(directory: Path, files: PlayedFiles) -> None:
    """Writes come in any order, over each other, and leave holes; removed files are gone."""
    changes: list[FileChange] = [
        CreateFile(1),
        write(1, 4, b"5678"),
        write(1, 0, b"123"),
        CreateFile(7),
    ]
    files.apply([*changes, write(1, 2, b"x"), write(7, 0, b"seven"), write(1, 10, b"end")])
    files.apply([RemoveFile(7)])

    assert (directory / STAGING / "1").read_bytes() == b"12x\0005678\0\0end"
    assert [each.name for each in (directory / STAGING).iterdir()] == ["1"]


def test_writes_that_follow_each_other_are_written_together(
    directory: Path, files: PlayedFiles
) -> None:
    """More of them than one call takes, between others of other files."""
    pieces = [b"%05d" % number for number in range(3 * BUFFERS_MAX)]
    changes = [write(1, 5 * number, piece) for number, piece in enumerate(pieces)]
    files.apply([CreateFile(1), CreateFile(2), *changes, write(2, 0, b"a"), write(2, 1, b"b")])
    files.apply([write(1, 1, b"x"), write(2, 2, b"c"), write(1, 2, b"y")])

    content = b"".join(pieces)
    assert (directory / STAGING / "1").read_bytes() == content[:1] + b"xy" + content[3:]
    assert (directory / STAGING / "2").read_bytes() == b"abc"


def test_write_that_the_disk_cuts_short_is_finished(
    directory: Path, files: PlayedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full pipe of the kernel, a signal: fewer bytes are taken than were given, also within one of the pieces."""
    real = os.pwritev

    def at_most_seven(descriptor: int, contents: list[memoryview], offset: int) -> int:
        return real(descriptor, [memoryview(b"".join(contents))[:7]], offset)

    monkeypatch.setattr(os, "pwritev", at_most_seven)
    pieces = [b"0123", b"456789", b"abcdefghijklmnopqrstuv", b"w"]
    begins = [0, 4, 10, 32]
    changes = [write(1, begin, piece) for begin, piece in zip(begins, pieces, strict=True)]
    files.apply([CreateFile(1), *changes])

    assert (directory / STAGING / "1").read_bytes() == b"".join(pieces)


def test_file_is_created_once(files: PlayedFiles) -> None:
    """What is there already was not made by this log."""
    files.apply([CreateFile(1)])

    with pytest.raises(FileExistsError):
        files.apply([CreateFile(1)])


def test_removal_and_writing_of_what_is_not_there_are_errors(files: PlayedFiles) -> None:
    """Somebody else meddles with our directory."""
    with pytest.raises(FileNotFoundError):
        files.apply([RemoveFile(1)])
    with pytest.raises(FileNotFoundError):
        files.apply([write(1, 0, b"x")])


def test_few_files_are_open_at_a_time(directory: Path, files: PlayedFiles) -> None:
    """Those used last; the others are opened again when they are written to."""
    numbers = range(1, 3 * DESCRIPTORS_MAX)
    files.apply([CreateFile(number) for number in numbers])
    assert open_below(directory) == DESCRIPTORS_MAX
    for round_ in range(2):
        files.apply([write(number, round_, b"%d" % round_) for number in numbers])
    assert open_below(directory) == DESCRIPTORS_MAX
    assert all((directory / STAGING / str(each)).read_bytes() == b"01" for each in numbers)

    files.close()
    files.close()
    assert open_below(directory) == 0


def test_live_files_are_at_all_of_their_paths(directory: Path, files: PlayedFiles) -> None:
    """In directories that are made for them; properties are files like others; the staged ones are gone."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"), chain.link(1, "/deep/er/b"), chain.create("//c"))
    log.append(chain.set_property("/deep/IDENTITY", "größer\r\n"))
    files.apply([CreateFile(1), write(1, 0, b"one"), CreateFile(3)])

    files.make_live(log.fsm)
    found = {each for each in directory.rglob("*") if each.is_file()}
    assert {str(each.relative_to(directory)) for each in found} == {
        "a",
        "c",
        "deep/er/b",
        "deep/IDENTITY",
    }
    assert (directory / "a").samefile(directory / "deep/er/b")
    assert (directory / "a").read_bytes() == b"one"
    assert (directory / "deep/IDENTITY").read_bytes() == "größer\r\n".encode()
    assert not (directory / STAGING).exists()
    assert open_below(directory) == 0


@pytest.mark.parametrize("path", ["/../out", "/a/../../out", "..", "/a/..", "/", "", "/a\0b"])
@pytest.mark.parametrize("kind", ["file", "property"])
def test_path_out_of_the_directory_is_refused(
    directory: Path, files: PlayedFiles, path: str, kind: str
) -> None:
    """A log is data, which others may have written."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create(path) if kind == "file" else chain.set_property(path, "x"))
    files.apply([CreateFile(1)] if kind == "file" else [])

    with pytest.raises(RecoveryLogError, match="is no file below the store's directory"):
        files.make_live(log.fsm)
    assert [each.name for each in directory.parent.iterdir()] == [directory.name]


def test_two_names_of_one_path_are_an_error(files: PlayedFiles) -> None:
    """No recorder of ours writes both."""
    log, chain = FileLog.empty(), OpChain(1)
    log.append(chain.create("/a"), chain.set_property("//a", "x"))
    files.apply([CreateFile(1)])

    with pytest.raises(FileExistsError):
        files.make_live(log.fsm)


def test_staged_files_that_nobody_knows_are_an_error(files: PlayedFiles) -> None:
    """Something was played that the state machine does not have."""
    files.apply([CreateFile(1), CreateFile(2)])

    with pytest.raises(RecoveryLogError, match=r"\['1', '2'\] that no operation names"):
        files.make_live(FileLog.empty().fsm)


def test_directory_is_made_anew(directory: Path, files: PlayedFiles) -> None:
    """Whatever was in it, and removed with all that is in it if playback fails."""
    files.apply([CreateFile(1)])
    (directory / "deep").mkdir()
    (directory / "deep" / "old").touch()

    PlayedFiles(directory, LOG).prepare()
    assert [each.name for each in directory.rglob("*")] == [STAGING]
    files.discard()
    assert not directory.exists()


def test_directory_that_cannot_be_emptied_is_an_error(tmp_path: Path) -> None:
    """An old file that stayed would pass for one of the log's."""
    (tmp_path / "shard").touch()

    with pytest.raises(NotADirectoryError):
        PlayedFiles(tmp_path / "shard", LOG).prepare()
