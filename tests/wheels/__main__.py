"""`make nightly-pythons`: the built wheel in an empty environment of each Python, and wheels for other systems.

A line of JSON for each: what was installed, and how long it takes from there to the first message that is counted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tests.wheels.environment import WheelError, build_wheel, find_python, tried
from tests.wheels.platforms import PLATFORMS, unresolved
from tests.wheels.project import supported_pythons


@click.command()
@click.option(
    "--python", "versions", multiple=True, help="Only this one, as 3.12; it must be there."
)
@click.option("--no-platforms", is_flag=True, help="Do not ask the index about other systems.")
def main(versions: tuple[str, ...], no_platforms: bool) -> None:
    """Install the wheel on each Python that the machine has, and use it; fail if one does not work."""
    failed = False
    with tempfile.TemporaryDirectory(prefix="broadsheet-wheels-") as directory:
        for line in _lines(Path(directory), versions, asks_index=not no_platforms):
            click.echo(json.dumps(line))
            failed |= bool(line.get("problem"))
    sys.exit(1 if failed else 0)


def _lines(
    directory: Path, versions: tuple[str, ...], *, asks_index: bool
) -> Iterator[dict[str, Any]]:
    wheel = build_wheel(directory)
    for version in versions or supported_pythons():
        python = find_python(version)
        line: dict[str, Any] = {"python": version, "wheel": wheel.name}
        if python is None:
            # A machine need not have all; one that was asked for must be there.
            absent = "is not on this machine"
            yield line | ({"problem": absent} if versions else {"skipped": absent})
            continue
        try:
            yield line | tried(python, wheel, directory / version)
        except WheelError as error:
            yield line | {"problem": str(error)}
    for platform in PLATFORMS if asks_index else ():
        for version in supported_pythons():
            line = {"platform": platform, "python": version}
            problem = unresolved(platform, version)
            yield line | ({"problem": problem} if problem else {"resolves": True})


if __name__ == "__main__":
    main()
