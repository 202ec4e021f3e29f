"""Workers of the Kinesis Client Library for Java and of vmware-go-kcl-v2, fetched by their packages' names and built
once, into caches.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.vs_structured_streaming.maven import COMPILER, Artifact, java_program

KCL_2: Final = Artifact("software.amazon.kinesis", "amazon-kinesis-client", "2.6.0")
KCL_3: Final = Artifact("software.amazon.kinesis", "amazon-kinesis-client", "3.5.1")
BUILD_SECONDS_MAX: Final = 1_200.0
"""For two busy cores with empty caches: four minutes each with a load of 30."""
_LOGS: Final = Artifact("org.slf4j", "slf4j-simple", "2.0.13")
_HERE: Final = Path(__file__).parent
_CACHE: Final = _HERE.parents[1] / ".cache" / "peers"
_SETTINGS: Final = ("-Daws.cborEnabled=false", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def kcl_command(library: Artifact, classes: Path) -> list[str]:
    """Return the command of a worker in Java, to which its arguments are added.

    Args:
        library: The version.
        classes: Where the program is compiled to.

    Raises:
        JarsNotFoundError: the library cannot be downloaded.
    """
    path = os.pathsep.join(map(str, [*library.class_path(), *_LOGS.class_path()]))
    compiler = os.pathsep.join(map(str, COMPILER.class_path()))
    compile_with = [java_program(), "-cp", compiler, "org.eclipse.jdt.internal.compiler.batch.Main"]
    options = ["--release", "17", "-proc:none", "-cp", path, "-d", str(classes)]
    _run([*compile_with, *options, str(_HERE / "KclWorker.java")], _HERE)
    return [java_program(), *_SETTINGS, "-cp", f"{classes}{os.pathsep}{path}", "KclWorker"]


def vmware_command() -> list[str]:
    """Return the command of a worker in Go, which is built if it is not in the cache; needs Go on PATH.

    Raises:
        RuntimeError: there is no Go, or it failed; the error has its output.
    """
    module = _HERE / "vmware_go"
    sources = [(module / each).read_bytes() for each in ("go.sum", "main.go")]
    program = _CACHE / f"vmware-{hashlib.sha256(b''.join(sources)).hexdigest()[:16]}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            go = shutil.which("go")
            if go is None:
                raise RuntimeError("no program `go` on PATH: install Go 1.21 or later")
            built = program.with_suffix(".building")
            _run([go, "build", "-mod=readonly", "-o", str(built), "."], module)
            built.rename(program)
    return [str(program)]


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        output = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"{command[0]} ended with status {done.returncode}: {output}")
