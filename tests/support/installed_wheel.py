"""The wheel of this repository in an environment of its own, beside the dependencies of ours."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.support.documents import REPOSITORY


def install_wheel(directory: Path) -> Path:
    """Build the wheel and install it into a new environment below `directory`; return its interpreter."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (wheel,) = directory.glob("*.whl")
    venv.create(directory / "venv", with_pip=False, symlinks=True)
    interpreter = directory / "venv" / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "install", "-q", "--offline", "--no-deps"),
            *("--no-cache", "--python", str(interpreter), str(wheel)),
        ],
        check=True,
    )
    # The path alone: the repository's own editable installation there is not followed.
    (packages_of(directory) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return interpreter


def packages_of(directory: Path) -> Path:
    """Return the folder of packages of the environment that `install_wheel` made."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(directory / "venv")}))
