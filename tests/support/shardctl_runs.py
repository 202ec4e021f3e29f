"""`shardctl` in this process, by lines as somebody types them: a process for each takes two seconds."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from broadsheet.cli.main import main


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command said."""

    stdout: str
    stderr: str
    status: int

    @property
    def leases(self) -> dict[str, dict[str, Any]]:  # Any: as JSON has it.
        """The leases of a JSON document, by key."""
        return {lease["key"]: lease for lease in json.loads(self.stdout)["leases"]}


def shardctl(line: str, *, directory: Path = Path()) -> Ran:
    """Run `shardctl …`, perhaps with `> FILE` at its end, which is a name in `directory`."""
    command, _, target = line.partition(" > ")
    words = shlex.split(command, comments=True)
    assert words[0] == "shardctl", f"not a line for shardctl: {line}"
    done = CliRunner().invoke(main, [_placed(word, directory) for word in words[1:]])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if target:
        (directory / target.strip()).write_text(done.stdout)
    return Ran("" if target else done.stdout, done.stderr, done.exit_code)


def shardctl_lines(code: str) -> list[str]:
    """Return the commands of a shell block; a backslash goes on in the next line."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _placed(word: str, directory: Path) -> str:
    """Return the path of a file that an earlier command wrote; any other word as it is."""
    path = directory / word
    return str(path) if word.endswith(".jsonl") and path.exists() else word
