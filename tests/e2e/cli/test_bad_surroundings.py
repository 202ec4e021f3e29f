"""Ports that are taken, directories that cannot be used, an etcd that panics: one line each, from real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.embedded.child_process import reason_of_end
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.runtime.errors import os_error_text
from tests.support.documents import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(900)]

APPLICATION = "broadsheet.examples.counter.app:Counter"
SHARDCTL = ("broadsheet.cli.main",)
BROKER = ("broadsheet.broker",)
SECONDS_MAX = 300.0


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine where somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def _error(*arguments: str, status: int = 1) -> str:
    """Return the one line with which a command ends at once."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env=os.environ | {"GRPC_VERBOSITY": "ERROR"},
    )
    assert ended.returncode == status, ended
    (line,) = ended.stderr.splitlines()
    return line


def test_broker_says_in_one_line_why_it_cannot_start(taken_port: int, tmp_path: Path) -> None:
    """Its port is taken, or its directory is below a file: neither a traceback nor a line of gRPC's."""
    (tmp_path / "file").touch()
    data, below = str(tmp_path / "data"), str(tmp_path / "file" / "data")
    address = f"127.0.0.1:{taken_port}"

    assert _error(*BROKER, "--data-dir", data, "--listen", address) == (
        f"Error: cannot listen at {address}: Address already in use; "
        "end what listens there, or choose another address"
    )
    admin = _error(*BROKER, "--data-dir", data, "--admin-port", str(taken_port))
    assert admin.startswith(f"Error: cannot listen at {address}: Address already in use")
    unusable = _error(*BROKER, "--data-dir", below)
    assert unusable.startswith(f"Error: the data in {below} cannot be used: ")
    assert unusable.endswith("; expected a directory there: choose another")


def test_member_says_in_one_line_why_it_cannot_start(
    etcd_server: EmbeddedEtcdProcess, taken_port: int, tmp_path: Path
) -> None:
    """The same of `shardctl serve`: its port, and its directory of state, which is a file."""
    file = tmp_path / "file"
    file.touch()
    where = ("--etcd", etcd_server.endpoint, "--root", f"/bad/{tmp_path.name}")
    serve = (*SHARDCTL, "serve", APPLICATION, *where, "--log-level", "error")

    port = _error(*serve, "--port", str(taken_port))
    state = _error(*serve, "--port", "0", "--state-dir", str(file))

    assert port.startswith(
        f"Error: cannot listen at 127.0.0.1:{taken_port}: Address already in use"
    )
    assert state == f"Error: {file}: File exists; expected a directory there: choose another"


def test_cluster_says_in_one_line_what_etcd_panicked_of(tmp_path: Path) -> None:
    """Etcd finds a database that is none, and logs a hundred lines: the one that counts is told."""
    database = tmp_path / "etcd" / "member" / "snap" / "db"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"no database" * 10_000)
    (tmp_path / "etcd").chmod(0o700)
    dev = (*SHARDCTL, "dev", APPLICATION, "--port", "0", "--broker-port", "0")

    line = _error(*dev, "--data-dir", str(tmp_path))
    (tmp_path / "file").touch()
    unusable = _error(*dev, "--data-dir", str(tmp_path / "file" / "data"))

    assert line.startswith("Error: embedded etcd: exited with status ")
    assert line.endswith("instead of serving: failed to open database: invalid database")
    assert unusable.startswith(f"Error: {tmp_path / 'file'}")
    assert unusable.endswith("expected a directory there: choose another")


def test_second_dev_on_one_directory_says_so_at_once(tmp_path: Path) -> None:
    """It waited for etcd's lock until its patience ended, and told nothing of the other."""
    dev = (*SHARDCTL, "dev", APPLICATION, "--port", "0", "--broker-port", "0")
    with (tmp_path / "dev.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()

        # Another directory is needed: the option is wrong.
        line = _error(*dev, "--data-dir", str(tmp_path), status=2)

    assert line == (
        f"Error: --data-dir: another shardctl dev uses {tmp_path} (process 4711); stop it, or choose another "
        "directory"
    )
    assert not (tmp_path / "etcd").exists()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "choose a directory that can be written"),
        (errno.EACCES, "this user may write"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_errors_of_the_system_come_with_what_to_do(number: int, advice: str) -> None:
    """A full disk and a read-only one end a start in the same way, and need different hands."""
    text = os_error_text(OSError(number, os.strerror(number), "/data"))

    assert text.startswith(f"/data: {os.strerror(number)}; ")
    assert advice in text


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            (
                'tel","msg":"cut off"}\n{"level":"info","msg":"starting"}\n'
                '{"level":"fatal","msg":"failed to create WAL","error":"no space left on device"}\n'
                "panic: later\n\ngoroutine 1 [running]:\n"
            ),
            "failed to create WAL: no space left on device",
        ),
        ("panic: assertion failed\n\ngoroutine 1 [running]:\nmain.go:1\n", "assertion failed"),
        (
            "a line\nError: cannot listen at 127.0.0.1:1: taken\n",
            "cannot listen at 127.0.0.1:1: taken",
        ),
        ("{}\n[1]\nnothing known\n", ""),
    ],
)
def test_reason_of_an_end_is_found_in_a_log(log: str, reason: str) -> None:
    """What a program logs last is seldom why it ended."""
    assert reason_of_end(log) == reason
