"""Other systems: whether the index has a wheel of each dependency for them."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from tests.support.documents import REPOSITORY

PLATFORMS: Final = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
)
"""As docs/dependencies.md names them; as uv writes them."""
_EXTRAS: Final = ("embedded", "spark-provided")
"""PySpark itself is no wheel on any system: it is built where it is installed."""
_SECONDS_MAX: Final = 300.0


def unresolved(platform: str, version: str) -> str:
    """Return why the dependencies cannot be installed from wheels there; empty if they can.

    Args:
        platform: One of `PLATFORMS`.
        version: Of Python, as `3.12`.
    """
    asked = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "uv",
                "pip",
                "compile",
                "pyproject.toml",
                "--only-binary",
                ":all:",
            ),
            *(part for extra in _EXTRAS for part in ("--extra", extra)),
            *("--python-version", version, "--python-platform", platform, "--quiet"),
            *("--no-header", "--no-annotate"),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    return "" if asked.returncode == 0 else asked.stderr.strip() or "uv says nothing"
