"""Workers of the Kinesis Client Library for Java and of vmware-go-kcl-v2: fetched by their packages' names, once, into
the checkout's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

BUILD_SECONDS_MAX: Final = 1_200.0
"""For two busy cores with empty caches of Go's and Maven's; half a minute and four minutes with a load of 30."""
_HERE: Final = Path(__file__).parent
_CACHE: Final = _HERE.parents[1] / ".cache" / "peers"


def kcl_command(version: str) -> list[str]:
    """Return the command of a worker in Java, to which its arguments are added.

    Raises:
        RuntimeError: a program is missing, or Maven failed; the error has its output.
    """
    project = _HERE / "kcl_java"

    def fetch(directory: Path) -> None:
        _run(
            [
                *("mvn", "--batch-mode", "--quiet", "--strict-checksums"),
                *(f"-Dkcl.version={version}", "dependency:copy-dependencies"),
                f"-DoutputDirectory={directory}",
            ],
            project,
        )

    libraries = _cached(f"kcl-{version}", project / "pom.xml", fetch)
    settings = ["-Daws.cborEnabled=false", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return [
        *(_program("java"), *settings, "-cp", f"{libraries}/*", str(project / "KclWorker.java"))
    ]


def vmware_command() -> list[str]:
    """Return the command of a worker in Go, as `kcl_command` does."""
    module = _HERE / "vmware_go"

    def build(directory: Path) -> None:
        _run(["go", "build", "-mod=readonly", "-o", str(directory / "worker"), "."], module)

    return [str(_cached("vmware", module / "go.sum", build, module / "main.go") / "worker")]


def _cached(name: str, pin: Path, make: Callable[[Path], None], *sources: Path) -> Path:
    """Return a directory that was made once of what these files say."""
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in (pin, *sources)))
    directory = _CACHE / f"{name}-{digest.hexdigest()[:16]}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = stack.enter_context((_CACHE / "lock").open("wb"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            made = directory.with_suffix(".making")
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            make(made)
            made.rename(directory)
    return directory


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(
        [_program(command[0]), *command[1:]],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        output = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}: {output}")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"no program `{name}` on PATH")
    return found
