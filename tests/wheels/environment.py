"""An empty environment of one Python, with the wheel in it, and what a newcomer does there first."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually_sync

INSTALL_SECONDS_MAX: Final = 900.0
COMMAND_SECONDS_MAX: Final = 600.0
"""The first import of everything compiles everything, which takes minutes where the machine has other work."""
_DOORS: Final = (
    "broadsheet broadsheet.allocator broadsheet.broker broadsheet.consumer broadsheet.consumer.sources"
    " broadsheet.consumer.stores broadsheet.embedded broadsheet.journals broadsheet.leases"
    " broadsheet.runtime broadsheet.security broadsheet.testing.allocator broadsheet.testing.leases"
    " broadsheet.testing.shards broadsheet.testing.stores"
)
_OPEN_DOORS: Final = f"""
import importlib
for door in {_DOORS!r}.split():
    module = importlib.import_module(door)
    for name in getattr(module, "__all__", ()):
        try:
            getattr(module, name)
        except ImportError as error:
            assert "the extra `" in str(error), f"{{door}}.{{name}}: {{error}}"
"""
"""Each name works, or says which extra it needs: nothing else may be missing."""


class WheelError(Exception):
    """The wheel does not work; the message has the command and what it printed."""


@dataclass(frozen=True, slots=True)
class _Environment:
    directory: Path
    """Of the environment; commands run in an empty one beside it."""

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def run(self, *command: str, stdin: str = "", seconds: float = COMMAND_SECONDS_MAX) -> str:
        """Run a program of the environment; return what it printed.

        Raises:
            WheelError: it failed, or did not end in time.
        """
        try:
            done = subprocess.run(
                self.line(command),
                cwd=self.empty,
                env=_plain(),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise WheelError(f"{command[0]} did not end within {seconds:g} s") from error
        if done.returncode:
            raise WheelError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def line(self, command: Sequence[str]) -> list[str]:
        """Return a command of this environment as the system takes it."""
        return [str(self.directory / "bin" / command[0]), *command[1:]]

    @property
    def empty(self) -> Path:
        directory = self.directory.parent / f"{self.directory.name}-empty"
        directory.mkdir(exist_ok=True)
        return directory


def _plain() -> dict[str, str]:
    """Return an environment in which nothing leads to the repository, or to other clusters."""
    ours = ("BROADSHEET_", "CONSUMER_", "BROKER_", "ETCD_", "AUTH_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def build_wheel(directory: Path) -> Path:
    """Return the wheel of the repository, built into a directory."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (wheel,) = directory.glob("*.whl")
    return wheel


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version, as `3.12`: on PATH, of pyenv, or of uv; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python")).expanduser()
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    found += sorted(managed.glob(f"cpython-{version}.*/bin/python"))
    return next((Path(each) for each in found if each and _is_version(each, version)), None)


def _is_version(program: str | Path, version: str) -> bool:
    """Report whether a program is a Python of a version: pyenv's shims may lead to none."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    asked = subprocess.run(
        [str(program), "-c", code], capture_output=True, text=True, check=False, env=_plain()
    )
    return asked.stdout.strip() == version


def tried(python: Path, wheel: Path, directory: Path) -> dict[str, Any]:
    """Install a wheel into a new environment and use it; return the measures.

    Raises:
        WheelError: something of it does not work.
    """
    environment = _Environment(directory)
    began = time.monotonic()
    _uv("venv", "--python", str(python), str(directory))
    _uv("pip", "install", "--python", str(environment.python), f"{wheel}[embedded]")
    installed = time.monotonic()
    environment.run("shardctl", "--version")
    environment.run("python", "-c", _OPEN_DOORS)
    before = time.monotonic()
    _count_a_message(environment)
    return {
        "version": environment.run("python", "-V").split()[1],
        "install_s": round(installed - began, 1),
        "install_mb": round(_bytes_of(directory) / 1e6),
        "first_message_s": round(time.monotonic() - before, 1),
    }


def _uv(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "uv", *arguments],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
        check=False,
        env=_plain(),
    )
    if done.returncode:
        raise WheelError(f"uv {' '.join(arguments)}:\n{done.stderr}")


def _bytes_of(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())


def _count_a_message(environment: _Environment) -> None:
    code = "import broadsheet.examples.counter as it; print(it.__path__[0])"
    example = environment.run("python", "-c", code).strip()
    with _running_dev(environment, example) as options:
        publish = ("shardctl", "journals", "publish", "counter/events/part-000", *options)
        environment.run(*publish, stdin='{"key": "first"}\n')
        wait = ("shardctl", "shards", "wait", "counter/part-000", "--for", "lag<1", *options)
        environment.run(*wait)


@contextmanager
def _running_dev(environment: _Environment, example: str) -> Iterator[list[str]]:
    """Run a cluster of the counter; yield the options with its addresses."""
    log = environment.empty / "dev.log"
    command = environment.line(
        [
            *("shardctl", "dev", "broadsheet.examples.counter.app:Counter", "--members", "1"),
            *("--port", "0", "--broker-port", "0"),
            *("--journals", f"{example}/journals.yaml", "--specs", f"{example}/shards.yaml"),
        ]
    )
    with log.open("w") as stream:
        dev = subprocess.Popen(
            command, cwd=environment.empty, env=_plain(), stdout=stream, stderr=stream
        )
    try:
        eventually_sync(
            lambda: "\ntry " in log.read_text() or dev.poll() is not None,
            timeout_seconds=COMMAND_SECONDS_MAX,
        )
        told = re.search(r"--address (\S+) --broker (\S+)", log.read_text())
        if told is None:
            raise WheelError(f"shardctl dev:\n{log.read_text()}")
        yield ["--address", told[1], "--broker", told[2]]
        dev.send_signal(signal.SIGINT)
        if dev.wait(timeout=COMMAND_SECONDS_MAX):
            raise WheelError(f"shardctl dev ended with {dev.returncode}:\n{log.read_text()}")
    finally:
        dev.kill()
        dev.wait()
