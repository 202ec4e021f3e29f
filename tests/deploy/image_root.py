"""The image, built and mounted: what runs from it runs as a container would, without a container's engine.

OCI runtimes need rights that build machines lack, so processes get the image as their root by bubblewrap: read-only, as
the image's user, without capabilities, with the image's environment. Networks are not separated.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broadsheet.embedded.child_process import ChildProcess
from tests.support.documents import REPOSITORY

BUILD_SECONDS_MAX: Final = 3600.0
DEBIAN: Final = "trixie"
"""Debian 13, whose Python is PYTHON_VERSION."""
PYTHON_VERSION: Final = "3.13"
_PACKAGES: Final = "ca-certificates,python3,python3-venv"
_TOOLS: Final = ("buildah", "bwrap", "debootstrap")
_CACHE: Final = REPOSITORY / ".cache" / "image"
_BASE: Final = "localhost/debian:base"
_IMAGE: Final = "localhost/broadsheet:test"


@dataclass(frozen=True, slots=True)
class ImageRoot:
    """The files of an image, and how it says that its processes run."""

    path: Path
    user: int
    directory: str
    environment: Mapping[str, str]
    healthcheck: Sequence[str]

    def command(
        self,
        *words: str,
        mounts: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return a command that runs words in the image.

        Args:
            words: A program of the image, and its arguments.
            mounts: Directories of this machine by their place in the image; they may be written to.
            environment: Variables beside those of the image.
        """
        made = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-pid"]
        made += ["--die-with-parent", "--clearenv"]
        made += ["--uid", str(self.user), "--gid", str(self.user), "--cap-drop", "ALL"]
        made += ["--ro-bind", str(self.path), "/", "--proc", "/proc", "--dev", "/dev"]
        made += ["--tmpfs", "/tmp", "--chdir", self.directory]
        for place, directory in (mounts or {}).items():
            made += ["--bind", str(directory), place]
        for name, value in {**self.environment, **(environment or {})}.items():
            made += ["--setenv", name, value]
        return [*made, *words]

    def run(
        self, *words: str, mounts: Mapping[str, Path] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run words in the image to their end."""
        return subprocess.run(
            self.command(*words, mounts=mounts), capture_output=True, text=True, check=False
        )

    @contextmanager
    def running(
        self,
        *words: str,
        mounts: Mapping[str, Path],
        environment: Mapping[str, str],
        directory: Path,
    ) -> Iterator[ChildProcess]:
        """Run words in the image for the length of the block; `directory` gets their log."""
        directory.mkdir()
        command = self.command(*words, mounts=mounts, environment=environment)
        child = ChildProcess(command, directory=directory, log_file=directory / "log")
        try:
            yield child
        finally:
            child.terminate(timeout_seconds=30.0)


def build_image() -> ImageRoot:
    """Build the image on a Debian of our own, with the checkout's wheel, and mount it.

    Raises:
        RuntimeError: a tool is missing; the error says how to install it.
        subprocess.CalledProcessError: a step failed.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        packages = "buildah bubblewrap debootstrap"
        raise RuntimeError(f"{missing} are not on PATH: apt-get install {packages}")
    _CACHE.mkdir(parents=True, exist_ok=True)
    if not _BASE_MARK.exists():
        _build_base()
    # Each image of an earlier run is a copy of all its files.
    _buildah("rm", "--all")
    _buildah("rmi", "--prune", "--force")
    context = _CACHE / "context"
    shutil.rmtree(context, ignore_errors=True)
    subprocess.run(
        [REPOSITORY / "deploy" / "image" / "build.sh"],
        env={**os.environ, "CONTEXT": str(context), "PYTHON_VERSION": PYTHON_VERSION},
        check=True,
        timeout=BUILD_SECONDS_MAX,
    )
    _buildah(
        "bud",
        "--format",
        "docker",
        "--isolation",
        "chroot",
        "--build-arg",
        f"BASE={_BASE}",
        "-t",
        _IMAGE,
        context,
    )
    described = json.loads(_buildah("inspect", "--type", "image", _IMAGE))
    # `Any`: what buildah prints of an image.
    config: dict[str, Any] = described["Docker"]["config"]
    container = _buildah("from", _IMAGE).strip()
    return ImageRoot(
        path=Path(_buildah("mount", container).strip()),
        user=int(config["User"].partition(":")[0]),
        directory=config["WorkingDir"],
        environment=dict(each.split("=", 1) for each in config["Env"]),
        healthcheck=config["Healthcheck"]["Test"][1:],
    )


_BASE_MARK: Final = _CACHE / f"{DEBIAN}.built"


def _build_base() -> None:
    root = _CACHE / DEBIAN
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", DEBIAN, root],
        check=True,
        timeout=BUILD_SECONDS_MAX,
        stdout=subprocess.DEVNULL,
    )
    for cache in (root / "var/cache/apt/archives", root / "var/lib/apt/lists"):
        shutil.rmtree(cache)
        cache.mkdir()
    file = _CACHE / "base.Dockerfile"
    file.write_text(f"FROM scratch\nADD {DEBIAN} /\n")
    _buildah("bud", "--isolation", "chroot", "-f", file, "-t", _BASE, _CACHE)
    _BASE_MARK.touch()


def _buildah(*words: str | Path) -> str:
    store: list[str | Path] = [
        "--storage-driver",
        "vfs",
        "--root",
        _CACHE / "store",
        "--runroot",
        _CACHE / "run",
    ]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        ["buildah", *store, *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=BUILD_SECONDS_MAX,
    )
    return done.stdout
