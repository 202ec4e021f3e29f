"""A run of tests says what failed, whatever failed: it is run here, as a run of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Each test starts pytest, and with it processes of its own.
pytestmark = pytest.mark.timeout(900)

_ROOT = Path(__file__).parents[3]
_HOOKS = "from tests.conftest import pytest_configure, pytest_report_to_serializable\n"


def _run(directory: Path, tests: str, *options: str, hooks: str = "") -> tuple[int, str]:
    """Run a file of tests with the hooks of our own; return its status and what it printed."""
    (directory / "conftest.py").write_text(_HOOKS + hooks)
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {_ROOT}\n")
    (directory / "test_it.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:asyncio",
        "-p",
        "no:randomly",
        f"--basetemp={directory / 'base'}",
        *options,
        "test_it.py",
    ]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_failure_on_undecodable_text_is_reported(tmp_path: Path) -> None:
    """A test in a process of its own fails on a lone surrogate, which no channel can carry: it is reported, and the
    others are run.
    """
    tests = "def test_a():\n    assert '\\udc80' == ''\ndef test_b():\n    pass\n"
    status, printed = _run(tmp_path, tests, "-n", "1")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in printed
    assert "\\udc80" in printed


def test_run_that_broke_off_says_what_had_failed(tmp_path: Path) -> None:
    """A hook fails after a test did: of pytest one would hear of the hook alone."""
    status, printed = _run(
        tmp_path,
        "def test_a():\n    assert 1 == 2\ndef test_b():\n    pass\n",
        hooks="def pytest_runtest_logfinish(nodeid):\n    assert 'test_b' not in nodeid, 'oh'\n",
    )
    assert status == pytest.ExitCode.INTERNAL_ERROR
    _, _, said = printed.partition("Failed before the run broke off:\n")
    assert "test_it.py::test_a [call]: assert 1 == 2" in said
    assert "internal error: AssertionError: oh" in said


def test_property_may_be_slow(tmp_path: Path) -> None:
    """An example that takes a quarter of a second is no failure: the machine is busy, and time is not its subject."""
    tests = """
import time
from hypothesis import given, settings, strategies as st

@settings(max_examples=1)
@given(st.booleans())
def test_slow(drawn: bool) -> None:
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
"""
    status, printed = _run(tmp_path, tests)

    assert status == 0, printed
