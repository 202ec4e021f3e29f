"""The tree of our exceptions as docs/errors.md shows it: `python -m tests.support.error_tree` writes it there."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.support.documents import REPOSITORY
from tests.support.sources import our_modules

PAGE = REPOSITORY / "docs/errors.md"
BEGIN, END = "<!-- errors: written by tests/support/error_tree.py -->\n", "<!-- end of errors -->\n"
ROOT = "BroadsheetError"


def drawn() -> str:
    """Return a Markdown list of every class of a module `errors` below the root, nested by inheritance.

    A class with two bases of ours is below both. Sources are read, not imported: no extra is needed.
    """
    below: dict[str, list[str]] = defaultdict(list)
    lines: dict[str, str] = {}
    for path, source in our_modules():
        if path.endswith("/errors.py") and not path.startswith("tests/"):
            for node in ast.parse(source).body:
                if isinstance(node, ast.ClassDef):
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    lines[node.name] = f"`{node.name}` ({path}): {summary}"
                    for base in node.bases:
                        below[ast.unparse(base)].append(node.name)
    return "".join(_listed(ROOT, lines, below, ""))


def _listed(
    name: str, lines: dict[str, str], below: dict[str, list[str]], indent: str
) -> Iterator[str]:
    yield f"{indent}* {lines[name]}\n"
    for each in sorted(below[name]):
        yield from _listed(each, lines, below, indent + "    ")


def on_page() -> str:
    """Return the tree that the page has now."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def write() -> None:
    """Put the tree of the classes into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{drawn()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    write()
