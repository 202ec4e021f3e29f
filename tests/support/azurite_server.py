"""A real Azurite for tests: Azure's own emulator of Blob Storage, installed by npm into the checkout's cache.

It keeps everything in memory, and cannot outlive the tests.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broadsheet.embedded.child_process import ChildProcess
from tests.support.eventually import eventually_sync
from tests.support.node_tools import find_node_tools, home_of, installed

_ROOT = Path(__file__).parents[2]
_DESCRIPTION = Path(__file__).parent / "azurite"
_CACHE = _ROOT / ".cache" / "azurite"
_PROGRAM = Path("azurite", "dist", "src", "blob", "main.js")

_LISTENS = re.compile(r"successfully listens on http://127\.0\.0\.1:(\d+)")
START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 5.0

ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Not a secret: every emulator has this one."""


def is_azurite_installed() -> bool:
    """Tell whether Azurite starts at once: if not, npm installs it first, and may take a minute."""
    return home_of(_DESCRIPTION, _CACHE).exists()


@contextmanager
def running_azurite() -> Iterator[str]:
    """Run a server on a free port, and yield the connection string of its account."""
    tools = find_node_tools()
    modules = installed(_DESCRIPTION, _CACHE, tools)
    with tempfile.TemporaryDirectory(prefix="broadsheet-azurite-") as directory:
        log_file = Path(directory, "log")
        server = ChildProcess(
            [
                *(str(tools.node), str(modules / _PROGRAM), "--inMemoryPersistence"),
                # Clients are newer than any emulator; nothing but the tests is to know of them.
                *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
                *("--blobHost", "127.0.0.1", "--blobPort", "0"),
            ],
            directory=Path(directory),
            log_file=log_file,
        )
        try:
            yield _connection_string(_port_of(server, log_file))
        finally:
            server.terminate(timeout_seconds=STOP_TIMEOUT_SECONDS)


def _port_of(server: ChildProcess, log_file: Path) -> int:
    """Wait until the server says where it listens."""

    def listens_or_ended() -> bool:
        return server.exit_code is not None or _LISTENS.search(log_file.read_text()) is not None

    eventually_sync(
        listens_or_ended, timeout_seconds=START_TIMEOUT_SECONDS, message="Azurite serves"
    )
    log = log_file.read_text()
    listens = _LISTENS.search(log)
    if listens is None:
        raise RuntimeError(f"Azurite ended with status {server.exit_code}: {log.strip()}")
    return int(listens[1])


def _connection_string(port: int) -> str:
    return (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={_ACCOUNT_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
    )
