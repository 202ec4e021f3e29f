"""Try the newest and the lowest versions that pyproject.toml admits: `make test-versions`.

`requirements/dev.txt` pins one set, whose versions a tool of development may hold back: OR-tools and grpcio-tools admit
protobuf 6 alone. What users get is another set, and what they may keep is a third. Here each is resolved for every
Python that is supported, and installed for one:

    newest    the newest Python of this machine, the newest versions
    lowest    the lowest Python, the lowest version of each package that is named
    beside    nothing of Spark's, beside pandas 3 and protobuf 7; only resolved

In the environments of the first two the tests that need no server and no JVM are run. They are made in
`.cache/versions`, by uv.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.documents import REPOSITORY

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Those that are supported; each set is resolved for all of them."""
HELD_BACK_BY: Final = ("grpcio-tools", "ortools")
"""Tools of development that admit protobuf 6 alone. They make stubs, and judge the solver."""
NEED_THEM: Final = ("tests/property/allocator/test_network_simplex.py",)
TOLD: Final = re.compile(r"^(grpcio|numpy|pandas|protobuf|pyarrow|pyspark)==\S+", re.MULTILINE)
FAST: Final = "not etcd and not azurite and not postgresql and not e2e and not spark"
_CACHE: Final = REPOSITORY / ".cache/versions"
_UV: Final = str(Path(sys.executable).with_name("uv"))


@dataclass(frozen=True, slots=True)
class VersionSet:
    """One choice of versions."""

    name: str
    resolution: str
    """As uv names it."""
    pythons: tuple[str, ...] = ()
    """For the environment: the first that this machine has; none: the set is only resolved."""
    without: tuple[str, ...] = ()
    """Extras that are left out."""
    beside: tuple[str, ...] = ()
    """Requirements of programs that have us installed."""


SETS: Final = (
    VersionSet("newest", "highest", tuple(reversed(PYTHONS))),
    VersionSet("lowest", "lowest-direct", PYTHONS[:1]),
    VersionSet(
        "beside",
        "highest",
        without=("connect", "demo", "dev", "docs", "spark"),
        beside=("pandas>=3", "protobuf>=7"),
    ),
)


def requirements(wanted: VersionSet) -> list[str]:
    """Return what users of a set's extras install, as `pyproject.toml` says."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found = dict.fromkeys((*project["dependencies"], *wanted.beside))
    for extra in extras.keys() - {"dev", *wanted.without}:
        found |= dict.fromkeys(extras[extra])
    # An extra that is made of others is here with them.
    return sorted(each for each in found if not each.startswith(f"{project['name']}["))


def tools() -> list[str]:
    """Return what tests need beside that; users install none of it, so that the newest versions do."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    left_out = re.compile(rf"({'|'.join((*HELD_BACK_BY, project['name']))})\b")
    return [each for each in project["optional-dependencies"]["dev"] if not left_out.match(each)]


def _uv(*arguments: str) -> None:
    subprocess.run([_UV, *arguments], cwd=REPOSITORY, check=True)


def resolve(wanted: VersionSet) -> None:
    """Resolve a set for each Python, and print the versions that most others depend on."""
    given, others = _CACHE / f"{wanted.name}.in", _CACHE / "tools.in"
    given.write_text("\n".join(requirements(wanted)) + "\n")
    others.write_text("\n".join(tools()) + "\n")
    for python in PYTHONS:
        pinned = _CACHE / f"{wanted.name}-{python}.txt"
        _uv(
            *("pip", "compile", str(given), "--python-version", python, "--quiet"),
            *("--resolution", wanted.resolution, "--no-header", "--output-file", str(pinned)),
        )
        if wanted.pythons:
            _uv(
                *("pip", "compile", str(pinned), str(others), "--python-version", python),
                *("--quiet", "--no-header", "--output-file", str(_tested_with(wanted, python))),
            )
        told = " ".join(each[0] for each in TOLD.finditer(pinned.read_text()))
        print(f"{wanted.name}, Python {python}: {told}", flush=True)


def _tested_with(wanted: VersionSet, python: str) -> Path:
    return _CACHE / f"{wanted.name}-{python}-tested.txt"


def _python_of(wanted: VersionSet) -> tuple[str, str]:
    """Return the first Python of a set that is here, on PATH or as pyenv keeps it: its version and its path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for version in wanted.pythons:
        on_path = shutil.which(f"python{version}")
        kept = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
        for path in filter(None, (on_path, *map(str, kept))):
            # pyenv's names on PATH are there for each version, and fail for those that are not chosen.
            if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                return version, path
    raise SystemExit(f"{wanted.name}: expected one of the Pythons {', '.join(wanted.pythons)}")


def run(wanted: VersionSet, jobs: int) -> bool:
    """Install a set and run the fast tests in it; return whether they passed."""
    version, path = _python_of(wanted)
    environment = _CACHE / wanted.name
    python = str(environment / "bin/python")
    install = ("pip", "install", "--quiet", "--python", python)
    _uv("venv", "--quiet", "--clear", "--python", path, str(environment))
    _uv(*install, "--requirement", str(_tested_with(wanted, version)))
    _uv(*install, "--no-deps", "--no-build-isolation", "--editable", ".")
    print(f"{wanted.name}, Python {version}: tests", flush=True)
    tests = subprocess.run(
        [
            *(python, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "loadgroup", "-m", FAST),
            *(f"--ignore={each}" for each in NEED_THEM),
        ],
        cwd=REPOSITORY,
        check=False,
    )
    return tests.returncode == 0


def main() -> None:
    """Resolve and try the sets, each even if one before it failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--set", choices=[each.name for each in SETS], help="this one alone")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--resolve-only", action="store_true", help="install nothing")
    arguments = parser.parse_args()
    chosen = [each for each in SETS if arguments.set in (None, each.name)]
    _CACHE.mkdir(parents=True, exist_ok=True)
    for each in chosen:
        resolve(each)
    if arguments.resolve_only:
        return
    tried = [each for each in chosen if each.pythons]
    failed = [each.name for each in tried if not run(each, arguments.jobs)]
    if failed:
        raise SystemExit(f"tests failed with these versions: {', '.join(failed)}")


if __name__ == "__main__":
    main()
