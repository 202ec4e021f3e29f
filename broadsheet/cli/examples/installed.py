"""The examples that are installed with us, and where their files are."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
PACKAGE: Final = "broadsheet.examples"


@dataclass(frozen=True, slots=True)
class Example:
    """An example that is installed."""

    name: str
    application: str
    """`package.module:attribute`, as `shardctl dev` takes it."""
    journals: Path | None
    specs: Path | None
    summary: str

    @property
    def command(self) -> str:
        """The command that runs it here."""
        parts = ["shardctl dev", self.application]
        parts += [f"--journals {self.journals}"] if self.journals else []
        parts += [f"--specs {self.specs}"] if self.specs else []
        return " \\\n    ".join(parts)


def installed_examples() -> list[Example]:
    """Return the examples, by name."""
    return [
        found
        for directory in sorted(EXAMPLES.iterdir())
        if (found := _example(directory)) is not None
    ]


def _example(directory: Path) -> Example | None:
    source = directory / "app.py"
    if not source.is_file():
        return None
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    # A function that makes the application is called so; a class alone is the application.
    attribute = "create" if "create" in names else names[0]
    return Example(
        directory.name,
        f"{PACKAGE}.{directory.name}.app:{attribute}",
        _file(directory / "journals.yaml"),
        _file(directory / "shards.yaml") or _file(directory / "specs.yaml"),
        (ast.get_docstring(tree) or "").partition("\n")[0],
    )


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
