"""The table of peers: it names tests that are there, and takes nothing for passed that was not run."""

from __future__ import annotations

import pytest

from tests.peers.__main__ import PEERS, Peer, Result, result_of, tried
from tests.support.documents import REPOSITORY

_CASES = {
    "passed": "<testcase/>",
    "failed": "<testcase><failure/></testcase>",
    "broken": "<testcase><error/></testcase>",
    "skipped": "<testcase><skipped/></testcase>",
}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_peer_names_its_tests_and_its_version(peer: Peer) -> None:
    """A file that was renamed would leave a row that tries nothing."""
    assert all((REPOSITORY / path.partition("::")[0]).exists() for path in peer.tests)
    assert peer.version()[0].isdigit()


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        (["passed", "passed"], Result(2)),
        (["passed", "failed"], Result(1, 1)),
        (["passed", "broken", "skipped"], Result(1, 2)),
        ([], Result()),
    ],
)
def test_result_is_good_only_if_all_of_something_passed(cases: list[str], expected: Result) -> None:
    """A peer of which every test was skipped must not look like one that works."""
    found = result_of(f"<testsuites>{''.join(_CASES[each] for each in cases)}</testsuites>")
    assert found == expected
    assert found.is_good == (expected == Result(2))


def test_peer_whose_tool_chain_is_missing_was_not_run() -> None:
    """A night without Go must not say that Gazette's brokers passed."""
    found = tried(Peer("A peer", "go:a", "real", "all of it", (), ("no-such-program",)))
    assert str(found) == "not run: needs no-such-program on PATH"
    assert not found.is_good
