"""The lists of members that workers leave for those after them on a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.spark_bridge.routing.member_list import MemberLists

MEMBERS = ("http://10.0.0.1:8080", "http://10.0.0.2:8080")


def test_list_is_found_by_the_next_worker(tmp_path: Path) -> None:
    """Another worker, and another cluster's: only the one that was kept is found, and the last one counts."""
    MemberLists(tmp_path / "lists").keep("a", MEMBERS)
    MemberLists(tmp_path / "lists").keep("a", [*MEMBERS[1:], MEMBERS[1]])
    later = MemberLists(tmp_path / "lists")

    assert later.known("a") == MEMBERS[1:]
    assert later.known("b") == ()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"7", b'{"a": 1}', b'["x", 7, null, "ftp://a:1"]', b"\xff" * 9]
)
def test_damaged_list_is_no_list(tmp_path: Path, content: bytes) -> None:
    """Another program, or a full disk, left something else there: members are looked up as if nothing were there."""
    MemberLists(tmp_path / "lists").keep("a", MEMBERS)
    (kept,) = (tmp_path / "lists").iterdir()
    kept.write_bytes(content)

    assert MemberLists(tmp_path / "lists").known("a") == ()


def test_list_that_others_may_write_is_not_believed(tmp_path: Path) -> None:
    """The directory is open to other users: calls with credentials would go where they please."""
    lists = tmp_path / "lists"
    MemberLists(lists).keep("a", MEMBERS)
    lists.chmod(0o777)

    assert MemberLists(lists).known("a") == ()

    (tmp_path / "link").symlink_to(lists)
    lists.chmod(0o700)
    assert MemberLists(tmp_path / "link").known("a") == ()
    assert MemberLists(lists).known("a") == MEMBERS


def test_list_that_cannot_be_kept_serves_its_own_worker(tmp_path: Path) -> None:
    """A machine without room for temporary files costs later workers a look-up, and no call."""
    (tmp_path / "file").write_bytes(b"")
    lists = MemberLists(tmp_path / "file" / "lists")

    lists.keep("a", MEMBERS)

    assert lists.known("a") == MEMBERS
