"""The way to a first success from an empty environment: `make bench BENCH=first_success`.

The wheel of the checkout is installed as a user installs it, into a new virtual environment, with what the package
index gives out today: figures of different days differ by other projects' releases. Then a project is made and run in
an empty folder. Extras may be named: `python -m bench.first_success core embedded spark`; `core` is none. Projects need
`embedded`, so `first_message_s` and `first_test_s` are measured with that extra alone.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.report import emit

BENCH = "first_success"
CORE, EMBEDDED = "core", "embedded"
EXTRAS = (CORE, EMBEDDED, "spark")
CHECKOUT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_SECONDS = 900
START_TIMEOUT_SECONDS = 120
POLL_SECONDS = 0.02
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
COUNTED = '"key":"a","count":1'
"""Part of the first message that the project publishes."""


def main() -> None:
    """Measure the extras named, or all of them."""
    with tempfile.TemporaryDirectory() as directory:
        wheel = built_wheel(Path(directory))
        for extra in sys.argv[1:] or EXTRAS:
            measure(extra, wheel, Path(directory) / extra)


def built_wheel(directory: Path) -> Path:
    """Build the wheel of the checkout; return its path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    _run(build, cwd=CHECKOUT)
    (wheel,) = directory.glob("*.whl")
    return wheel


def measure(extra: str, wheel: Path, directory: Path) -> None:
    """Install with one extra, and print the figures of the installation, of imports, and of a project."""
    python = directory / "venv" / "bin" / "python"
    wanted = str(wheel) if extra == CORE else f"{wheel}[{extra}]"
    _run([*_uv(), "venv", "--quiet", "--python", sys.executable, str(directory / "venv")])
    # As pip does, with which users install: else each process of a cluster compiles everything at its first start.
    install = [*_uv(), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    # With what the machine's cache of downloads has: the second run of a day tells what unpacking takes.
    with measured("install", extra=extra):
        _run([*install, wanted])
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_run([str(python), "-c", purelib]).strip())
    emit(BENCH, "install_mb", size_mib(packages), "MiB", extra=extra)
    emit(BENCH, "packages", len(list(packages.glob("*.dist-info"))), "packages", extra=extra)
    for module in MODULES:
        timed_import = [str(python), "-P", "-c", TIMED_IMPORT.format(module)]
        # The first writes the compiled files, as for any user after the first time.
        _run(timed_import)
        quickest = min(float(_run(timed_import)) for _ in range(IMPORT_ROUNDS))
        emit(BENCH, "import_s", quickest, "s of CPU", extra=extra, module=module)
    if extra == EMBEDDED:
        _run([*install, "pytest"])
        measure_project(python.parent, directory)


def measure_project(programs: Path, directory: Path) -> None:
    """Print `first_message_s`, from `shardctl init` to a counted message, and `first_test_s`, of the project's test."""
    shardctl, project = str(programs / "shardctl"), directory / "hello"

    # The CPU has that of the cluster's end, the seconds have not.
    with measured("first_message") as is_over:
        _run([shardctl, "init", "hello"], cwd=directory)
        with running_dev(shardctl, project) as environment:
            message = '{"key": "a"}\n'
            publish = [shardctl, "journals", "publish", "hello/events/", "--key", "key"]
            _run(publish, cwd=project, environment=environment, stdin=message)
            await_counted(shardctl, project, environment)
            is_over()
    with measured("first_test"):
        _run([str(programs / "python"), "-m", "pytest", "-q"], cwd=project)


def await_counted(shardctl: str, project: Path, environment: dict[str, str]) -> None:
    """Follow the project's output until it has the count of the first message."""
    follow = [shardctl, "journals", "read", "hello/counts", "--messages", "--block"]
    with subprocess.Popen(  # noqa: S603 our own command
        follow, cwd=project, env=environment, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None, "it is a pipe"
        line = reader.stdout.readline()
        reader.kill()
    assert COUNTED in line, line


@contextmanager
def running_dev(shardctl: str, project: Path) -> Iterator[dict[str, str]]:
    """Run `shardctl dev` in a project; yield the environment that leads to its cluster."""
    log = project / "dev.log"
    with log.open("w") as stream:
        process = subprocess.Popen(  # noqa: S603 our own command
            [shardctl, "dev", "--port", "0", "--broker-port", "0"],
            cwd=project,
            stdout=stream,
            stderr=stream,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not (found := re.search(r"--address (\S+) --broker (\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(POLL_SECONDS)
        yield {**os.environ, "CONSUMER_ADDRESS": found[1], "BROKER_ADDRESS": found[2]}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=START_TIMEOUT_SECONDS)


@contextmanager
def measured(name: str, **labels: str) -> Iterator[Callable[[], None]]:
    """Print the seconds of a block, and the CPU of the processes that it ran, which others on the machine change less.

    Yields:
        Ends the seconds before the block ends.
    """

    def stop() -> None:
        ended.append(time.monotonic())

    ended: list[float] = []
    used, began = _cpu_of_children(), time.monotonic()
    yield stop
    stop()
    emit(BENCH, f"{name}_s", ended[0] - began, "s", **labels)
    emit(BENCH, f"{name}_cpu_s", _cpu_of_children() - used, "s of CPU", **labels)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def size_mib(directory: Path) -> float:
    """Return the size of all files below a directory in MiB, each as its content, not as blocks of a disk.

    Without compiled files, which installers may or may not write.
    """
    files = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sum(path.stat().st_size for path in files) / 2**20


def _uv() -> list[str]:
    assert find_spec("uv") is not None, (
        "uv is not installed; it is one of the development tools: run make setup"
    )
    return [sys.executable, "-m", "uv"]


def _run(
    command: list[str],
    *,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
    stdin: str | None = None,
) -> str:
    done = subprocess.run(  # noqa: S603 our own commands
        command,
        cwd=cwd,
        env=environment,
        input=stdin,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=INSTALL_TIMEOUT_SECONDS,
    )
    return done.stdout


if __name__ == "__main__":
    main()
