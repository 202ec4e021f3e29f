"""A broker process does its work whatever becomes of its standard descriptors."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broadsheet.embedded.broker import package_environment
from broadsheet.journals.client import JournalClient
from tests.support.eventually import DEADLINE_SECONDS, eventually_sync
from tests.support.members import create_journals


def _command(directory: Path, port: int = 0) -> list[str]:
    listen = ("--listen", f"127.0.0.1:{port}")
    return [
        *(sys.executable, "-P", "-m", "broadsheet.broker"),
        *("--data-dir", str(directory / "broker"), *listen, "--log-level", "debug"),
    ]


def _start(directory: Path) -> tuple[subprocess.Popen[bytes], int, str]:
    """Return a broker, the reading end of the pipe that it prints to, and its address."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        _command(directory),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=writer,
        env=package_environment(),
    )
    os.close(writer)
    told = b""
    while (found := re.search(rb"^listening (http://\S+)$", told, re.MULTILINE)) is None:
        content = os.read(reader, 4_096)
        assert content, told
        told += content
    return process, reader, found[1].decode()


async def test_broker_whose_log_has_no_reader_any_more_serves_and_ends_cleanly(
    tmp_path: Path,
) -> None:
    """`broker | tee log` with a killed `tee`: the broker logs each new journal, and must create it all the same."""
    process, reader, address = _start(tmp_path)
    try:
        os.close(reader)
        async with JournalClient(address) as journals:
            for number in range(3):
                await create_journals(journals, f"logs/{number}")
                await journals.append(f"logs/{number}", b"x\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_broker_started_with_closed_standard_descriptors_serves_and_ends_cleanly(
    tmp_path: Path, closed: str
) -> None:
    """Some supervisors close them: no file of the broker's may get their numbers, and nothing that is printed fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *_command(tmp_path, port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=package_environment(),
    )
    try:

        def serves() -> bool:
            assert process.poll() is None
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        eventually_sync(serves)
        descriptors = Path("/proc", str(process.pid), "fd")
        found = [(descriptors / str(number)).readlink() for number in range(3)]
        assert [str(each) for each in found[1:]] == [os.devnull] * 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
