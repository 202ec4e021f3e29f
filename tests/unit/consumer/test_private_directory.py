"""Directories of state: whose they may be, and who may write to them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broadsheet.broker.data_root import open_data_root
from broadsheet.broker.disk import Disk
from broadsheet.consumer.stores.directory_lock import DirectoryLock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.private_directory import make_parent, make_private
from broadsheet.runtime.process_directory import HELD, ProcessDirectory

STRANGER = 65_534
as_superuser = pytest.mark.skipif(
    os.geteuid() != 0, reason="only the superuser can make what belongs to another user"
)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    """Journals and states are as secret as what the tokens guard."""
    make_private(tmp_path / "parent" / "state")
    assert _mode(tmp_path / "parent" / "state") == 0o700


def test_directory_of_an_earlier_version_is_tightened(tmp_path: Path) -> None:
    """Earlier versions let others read: data that they wrote is used, and others read it no more."""
    directory = tmp_path / "state"
    directory.mkdir(mode=0o755)
    (directory / "file").write_bytes(b"content")
    (directory / "file").chmod(0o644)
    (directory / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"another's")
    (tmp_path / "elsewhere").chmod(0o644)

    make_private(directory)

    assert (_mode(directory), _mode(directory / "file")) == (0o700, 0o600)
    assert _mode(tmp_path / "elsewhere") == 0o644, "a link was followed"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    """What lies there may be anyone's: a forged checkpoint, or a state to be read as ours."""
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(mode)

    with pytest.raises(ValidationError, match="chmod 700"):
        make_private(directory)


def test_file_in_place_of_a_directory_is_named(tmp_path: Path) -> None:
    """The error names what the operator gave, and the file keeps its mode."""
    file = tmp_path / "file"
    file.touch()
    # Whatever the process' umask is.
    file.chmod(0o644)

    for make in (make_private, make_parent):
        with pytest.raises(FileExistsError) as refused:
            make(file)
        assert refused.value.filename == str(file)
    assert _mode(file) == 0o644


def test_shared_parent_needs_its_sticky_bit(tmp_path: Path) -> None:
    """In /tmp, users cannot touch each other's directories; without the sticky bit they can replace them."""
    tmp_path.chmod(0o1777)
    make_parent(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(ValidationError, match="other users may write"):
        make_parent(tmp_path)


def test_broker_and_stores_refuse_a_directory_that_others_may_write_to(tmp_path: Path) -> None:
    """Every door to a directory of state asks."""
    tmp_path.chmod(0o777)
    with pytest.raises(ValidationError, match=str(tmp_path)):
        open_data_root(Disk(), tmp_path, first_revision=1)
    with pytest.raises(ValidationError, match=str(tmp_path)):
        DirectoryLock("shard", tmp_path, wait_seconds=0)
    with pytest.raises(ValidationError, match=str(tmp_path)), ProcessDirectory(parent=tmp_path):
        pass


@as_superuser
def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner can replace what is in it at any time, whatever its mode says now."""
    directory, link = tmp_path / "state", tmp_path / "link"
    directory.mkdir(mode=0o700)
    link.symlink_to(directory)
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(ValidationError, match=f"user {STRANGER} made it"):
        make_private(link)
    os.chown(directory, STRANGER, STRANGER)
    with pytest.raises(ValidationError, match=f"user {STRANGER}"):
        make_private(directory)


@as_superuser
def test_sweep_leaves_what_others_put_into_a_shared_parent(tmp_path: Path) -> None:
    """A process that starts removes what dead processes of its own user left, and touches nothing else."""
    tmp_path.chmod(0o1777)
    foreign, linked = tmp_path / "foreign", tmp_path / "linked"
    for directory in (foreign, tmp_path / "target"):
        directory.mkdir()
        (directory / HELD).write_bytes(b"")
    os.chown(foreign, STRANGER, STRANGER)
    elsewhere = tmp_path / "target"
    linked.symlink_to(elsewhere)
    os.chown(elsewhere, STRANGER, STRANGER)

    with ProcessDirectory(parent=tmp_path):
        pass

    assert (foreign / HELD).exists()
    assert (elsewhere / HELD).exists()
