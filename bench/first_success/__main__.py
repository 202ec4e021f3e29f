"""Size of an installation and seconds of imports: `make bench BENCH=first_success`.

The checkout is installed as a user installs it, into a new virtual environment, with what the package index gives out
today: figures of different days differ by other projects' releases. Extras may be named: `python -m
bench.first_success core embedded spark`; `core` is none, and the default.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench.report import emit

BENCH = "first_success"
CORE = "core"
CHECKOUT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_SECONDS = 900
IMPORT_ROUNDS = 5
"""Imports in new processes; the quickest is told, because others measure what else the machine does."""

MODULES = (
    "broadsheet",
    "broadsheet.consumer",
    "broadsheet.cli.main",
    "broadsheet.allocator.placement.flow",
)
"""The package, a door, the command line, and the solver, which only members that may lead import."""

TIMED_IMPORT = (
    "import time; began = time.process_time(); import {}; print(time.process_time() - began)"
)


def main() -> None:
    """Measure the extras named, or the core."""
    for extra in sys.argv[1:] or [CORE]:
        with tempfile.TemporaryDirectory() as directory:
            measure(extra, Path(directory))


def measure(extra: str, directory: Path) -> None:
    """Install with one extra, and print `install_mb`, `packages` and `import_s` of each module."""
    python = directory / "venv" / "bin" / "python"
    wanted = str(CHECKOUT) if extra == CORE else f"{CHECKOUT}[{extra}]"
    _run([*_uv(), "venv", "--quiet", "--python", sys.executable, str(directory / "venv")])
    _run([*_uv(), "pip", "install", "--quiet", "--python", str(python), wanted])
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_run([str(python), "-c", purelib]).strip())
    # Before any import, so that no compiled file is counted: an installer may or may not write those.
    emit(BENCH, "install_mb", size_mib(packages), "MiB", extra=extra)
    emit(BENCH, "packages", len(list(packages.glob("*.dist-info"))), "packages", extra=extra)
    for module in MODULES:
        timed = [str(python), "-P", "-c", TIMED_IMPORT.format(module)]
        # The first writes the compiled files, as for any user after the first time.
        _run(timed)
        quickest = min(float(_run(timed)) for _ in range(IMPORT_ROUNDS))
        emit(BENCH, "import_s", quickest, "s of CPU", extra=extra, module=module)


def size_mib(directory: Path) -> float:
    """Return the size of all files below a directory in MiB, each as its content, not as blocks of a disk."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) / 2**20


def _uv() -> list[str]:
    assert find_spec("uv") is not None, (
        "uv is not installed; it is one of the development tools: run make setup"
    )
    return [sys.executable, "-m", "uv"]


def _run(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 our own commands
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=INSTALL_TIMEOUT_SECONDS
    )
    return done.stdout


if __name__ == "__main__":
    main()
