"""Recipes of docs/recipes as tests: a copy of the repository, and the steps that a page gives, followed in it.

New file **path**:     the block below is the file
In **path**:           the ```diff block below is the change; a line `…` stands between its parts
<!-- run -->           the ```sh block below is run at the copy's root
<!-- shows -->         each line of the ```text block below is in the output of the block before
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.documents import REPOSITORY, missing_line

_STEP = re.compile(
    r"^(?:(New file|In) \*\*([\w./-]+)\*\*:\n|<!-- (run|shows) -->)\n```\w+\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_ENVIRONMENT = Path(sys.executable).parents[1]
RUN_SECONDS_MAX = 240
"""Longest time of one block."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a recipe."""

    kind: str
    """`New file`, `In`, `run` or `shows`."""
    path: str
    """Of the file, from the repository's root; empty for the other kinds."""
    text: str


def steps_of(document: Path) -> list[Step]:
    """Return the steps of a page, in order."""
    return [
        Step(kind or marker, path, text)
        for kind, path, marker, text in _STEP.findall(document.read_text(encoding="utf-8"))
    ]


def copy_repository(target: Path) -> None:
    """Copy what git knows or would take into `target`, as a repository with its own `.venv` whose tools are ours."""
    listed = _git(REPOSITORY, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        source, copy = REPOSITORY / name, target / name
        if source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    environment = target / ".venv"
    environment.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(_ENVIRONMENT / name)
    # Newer than what it is made of: `make` must not install.
    (environment / ".ready").touch()
    for command in (("init", "-q"), ("add", "-A")):
        _git(target, *command)


def follow(document: Path, target: Path) -> None:
    """Follow a page in a copy of the repository; fail at the first step that does not do what the page says."""
    output = ""
    for step in steps_of(document):
        if step.kind == "New file":
            assert not (target / step.path).exists(), f"{step.path} is there already"
            (target / step.path).parent.mkdir(parents=True, exist_ok=True)
            (target / step.path).write_text(step.text, encoding="utf-8")
        elif step.kind == "In":
            path = target / step.path
            path.write_text(changed(path.read_text(encoding="utf-8"), step), encoding="utf-8")
        elif step.kind == "run":
            output = _run(step.text, target)
        else:
            missing = missing_line(tuple(step.text.splitlines()), output)
            assert missing is None, (
                f"{document.name} shows {missing!r}, and the output is:\n{output}"
            )


def changed(text: str, step: Step) -> str:
    """Return a file's text with the parts of a `diff` block replaced; each must be there once."""
    for part in re.split(r"^…\n", step.text, flags=re.MULTILINE):
        lines = [line or " " for line in part.split("\n")[:-1]]
        before = "".join(line[1:] + "\n" for line in lines if line[0] in " -")
        after = "".join(line[1:] + "\n" for line in lines if line[0] in " +")
        assert before, f"{step.path}: a part without context:\n{part}"
        assert before != after, f"{step.path}: a part without a change:\n{part}"
        assert text.count(before) == 1, (
            f"{step.path} has this {text.count(before)} times:\n{before}"
        )
        text = text.replace(before, after)
    return text


def _run(script: str, target: Path) -> str:
    ran = subprocess.run(
        ["/bin/sh", "-eu", "-c", script],
        cwd=target,
        env={
            **os.environ,
            "PATH": f"{target / '.venv/bin'}:{os.environ['PATH']}",
            # Before the installed links, which lead to the repository that was copied.
            "PYTHONPATH": str(target),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert ran.returncode == 0, f"{script}\n{ran.stdout}"
    return ran.stdout


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout
