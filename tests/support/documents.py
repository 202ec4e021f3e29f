"""Documents as tests: their marked code blocks, and what the blocks are said to show.

<!-- run -->      the ```sh or ```python block below is run
<!-- start -->    the ```sh block below is started and left running
<!-- shows -->    each line of the ```text block below is in the output of the block before; `…` stands for anything
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_MARKED = re.compile(r"^<!-- (run|start|shows) -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A marked block and what must be in its output."""

    kind: str
    """`run` or `start`."""
    language: str
    code: str
    shown: tuple[str, ...]
    """Lines, in this order."""


def blocks_of(document: Path) -> list[Block]:
    """Return the marked blocks of a Markdown file, in order."""
    blocks: list[Block] = []
    for kind, language, text in _MARKED.findall(document.read_text(encoding="utf-8")):
        if kind == "shows":
            last = blocks.pop()
            shown = (*last.shown, *text.splitlines())
            blocks.append(Block(last.kind, last.language, last.code, shown))
        else:
            blocks.append(Block(kind, language, text, ()))
    return blocks


def missing_line(shown: tuple[str, ...], output: str) -> str | None:
    """Return the first line that the output does not have, or None. Runs of blanks are alike: columns vary."""
    rest = iter(output.splitlines())
    for line in shown:
        if not any(_pattern(line).search(candidate) for candidate in rest):
            return line
    return None


def _pattern(line: str) -> re.Pattern[str]:
    literal = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in line.split("…")]
    return re.compile(r"^\s*" + ".*".join(literal).rstrip() + r"\s*$")


def product_folders() -> list[Path]:
    """Return the folders of product code, by the links in `broadsheet/`; what has no link is in that folder itself."""
    linked = [each.resolve() for each in (REPOSITORY / "broadsheet").iterdir() if each.is_symlink()]
    return sorted([REPOSITORY / "broadsheet", *linked])
