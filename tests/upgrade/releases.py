"""Releases as programs: this repository, and a wheel of an earlier state of it, each with its interpreter."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.documents import REPOSITORY

PREVIOUS: Final = "582225ee54dfc63aba0e5d306fc1011b3f143210"
"""The state that stands for the previous release, as long as none is published; then it is that release's tag."""
_CACHE: Final = REPOSITORY / ".cache" / "releases"


class NoHistoryError(Exception):
    """The clone is shallow; the message says how to get what it lacks."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release, and how its processes are started."""

    name: str
    python: Path
    broker_module: str
    """`python -m` of the embedded broker."""
    search_path: str = ""
    """Where its processes find it; empty: in the interpreter's environment."""

    @property
    def shardctl(self) -> Path:
        """The command line of the release."""
        return self.python.parent / "shardctl"


def this_release() -> Release:
    """Return the release that the repository is."""
    return Release("this", Path(sys.executable), "broadsheet.broker", str(REPOSITORY))


def previous_release() -> Release:
    """Return the previous release, installed from a wheel that is built once, beside the dependencies of this one.

    Raises:
        NoHistoryError: the repository does not have it.
    """
    directory = _CACHE / PREVIOUS[:12]
    if not (directory / "ready").exists():
        _install(directory)
        (directory / "ready").touch()
    return Release("previous", directory / "venv" / "bin" / "python", "broadsheet.consumer.broker")


def _install(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        sources = Path(work) / "sources"
        _unpack(Path(work) / "sources.tar", sources)
        built = Path(work) / "wheels"
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
        subprocess.run(command, cwd=sources, check=True, capture_output=True)
        (wheel,) = built.glob("*.whl")
        venv.create(directory / "venv", with_pip=False, symlinks=True, clear=True)
        python = directory / "venv" / "bin" / "python"
        install = ("pip", "install", "-q", "--offline", "--no-deps", "--no-cache")
        subprocess.run(
            [sys.executable, "-m", "uv", *install, "--python", str(python), str(wheel)], check=True
        )
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory / "venv")}))
    # The path alone: the repository's own editable installation there is not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))


def _unpack(archive: Path, directory: Path) -> None:
    command = ["git", "archive", "--output", str(archive), PREVIOUS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoHistoryError(
            f"{' '.join(command)}: {done.stderr.strip()}; a shallow clone gets it by `git fetch --unshallow`"
        )
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
