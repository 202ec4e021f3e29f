"""Documents as tests: their marked code blocks, and what the blocks are said to show.

<!-- run -->      the ```sh or ```python block below is run
<!-- start -->    the ```sh block below is started and left running
<!-- shows -->    each line of the ```text block below is in the output of the block before; `…` stands for anything

A line `! COMMAND` says that the command is refused. A shell ignores its status even under `set -e`, and a command may
fail for any reason, so the script that is run ends there if the command succeeds, and the block must show why it fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_REFUSAL = re.compile(r"^! ((?:.*\\\n)*.*)$", re.MULTILINE)
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

    @property
    def refusals(self) -> list[str]:
        """The commands that must fail, each without its `!`."""
        return _REFUSAL.findall(self.code) if self.language == "sh" else []

    @property
    def script(self) -> str:
        """The code of a shell block to run: it ends with status 1 where a command that must fail succeeds."""
        return _REFUSAL.sub(
            r"! \1 || { echo 'this command should have been refused' >&2; exit 1; }", self.code
        )


class UnprovenRefusalError(AssertionError):
    """A block has a command that must fail, and does not show the line that says why it fails."""


def blocks_of(document: Path) -> list[Block]:
    """Return the marked blocks of a Markdown file, in order.

    Raises:
        UnprovenRefusalError: a block has more commands that must fail than lines that it shows.
    """
    blocks = parse_blocks(document.read_text(encoding="utf-8"))
    for block in blocks:
        if len(block.refusals) > len(block.shown):
            raise UnprovenRefusalError(
                f"{document}: {block.refusals[-1]!r} may fail for any reason: show the line that it prints"
            )
    return blocks


def parse_blocks(text: str) -> list[Block]:
    """Return the marked blocks of Markdown, in order."""
    blocks: list[Block] = []
    for kind, language, content in _MARKED.findall(text):
        if kind == "shows":
            last = blocks.pop()
            shown = (*last.shown, *content.splitlines())
            blocks.append(Block(last.kind, last.language, last.code, shown))
        else:
            blocks.append(Block(kind, language, content, ()))
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
