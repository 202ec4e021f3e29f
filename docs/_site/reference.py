"""The reference: one page for each door, generated from the names that it exports and from their docstrings.

A door is a package whose `__init__.py` exports names, in `__all__` or as `X as X`, that no enclosing door exports. The
page groups its names by the sub-package that defines them, as the door's imports say. The sources are parsed and never
imported, so no extra is needed.
"""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

_REPOSITORY = Path(__file__).resolve().parents[2]
_FOLDER = "reference"


@dataclass(frozen=True)
class Door:
    """A package, and the names that it exports."""

    module: str
    summary: str
    """The first paragraph of its docstring."""
    homes: dict[str, str]
    """For each exported name, the module that the door imports it from."""

    @property
    def page(self) -> str:
        """The file name of its page."""
        return f"{self.module}.md"

    def groups(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the door's own names, those of each room below it, and the errors; each with a title."""
        own = self.module.rpartition(".")[2]
        groups: dict[tuple[int, str], list[str]] = {}
        for name, home in self.homes.items():
            rooms = home.removeprefix(f"{self.module}.").split(".")[:-1]
            if name.endswith("Error"):
                group = (2, "errors")
            elif home.startswith(f"{self.module}.") and rooms:
                group = (1, rooms[0])
            else:
                group = (0, own)
            groups.setdefault(group, []).append(name)
        for (_, title), names in sorted(groups.items()):
            yield title.replace("_", " ").capitalize(), sorted(names, key=str.lower)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each door, and one that lists the doors."""
    doors = {door.module: door for door in doors_of_packages()}
    files.append(
        File.generated(config, f"{_FOLDER}/index.md", content=_index(list(doors.values())))
    )
    for door in doors.values():
        content = _page(door, doors)
        files.append(File.generated(config, f"{_FOLDER}/{door.page}", content=content))
    return files


def doors_of_packages() -> list[Door]:
    """Return the doors of the packages that a wheel has."""
    found: list[Door] = []
    modules: list[Door] = []
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        for folder, below, names in os.walk(_REPOSITORY / package, followlinks=True):
            below.sort()
            if "__init__.py" in names:
                door = _door(Path(folder))
                enclosing = [other for other in found if door.module.startswith(f"{other.module}.")]
                if door.homes.keys() - {name for other in enclosing for name in other.homes}:
                    found.append(door)
        modules += map(_door, sorted((_REPOSITORY / package).glob("[a-z]*.py")))
    # A module is a door if it only hands on what doors export.
    packages = {door.module for door in found}
    return found + [
        door for door in modules if door.homes and packages.issuperset(door.homes.values())
    ]


def _door(path: Path) -> Door:
    """Read a module, or the `__init__.py` of a package."""
    module = ".".join(path.relative_to(_REPOSITORY).with_suffix("").parts)
    if path.is_dir():
        path /= "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"), path)
    summary = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    exported: list[str] = []
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(home), names=names):
                imported.update((alias.asname or alias.name, home) for alias in names)
                exported += [alias.name for alias in names if alias.asname == alias.name]
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                exported = ast.literal_eval(value)
    if exported and not summary:
        raise PluginError(f"{path}: a door needs a docstring, which opens its page")
    return Door(module, summary, {name: imported.get(name, module) for name in exported})


def _index(doors: list[Door]) -> str:
    rows = "".join(f"| [`{door.module}`]({door.page}) | {door.summary} |\n" for door in doors)
    return (
        "# Reference\n\nThe names that programs may import, by the package that exports them. Every other module is "
        f"internal.\n\n| Package | What it has |\n|---|---|\n{rows}"
    )


def _page(door: Door, doors: dict[str, Door]) -> str:
    docstring = _directive(
        door.module, members=False, show_root_heading=False, show_root_toc_entry=False
    )
    parts = [f"# `{door.module}`\n", docstring]
    for room, names in door.groups():
        parts.append(f"## {room}\n")
        for name in names:
            home = door.homes[name]
            if home in doors and home != door.module:
                # A front door repeats names of the doors behind it: described once, there.
                parts.append(f"* [`{name}`][{home}.{name}]")
            else:
                parts.append(_directive(f"{door.module}.{name}"))
        parts.append("")
    return "\n".join(parts)


def _directive(identifier: str, **options: bool) -> str:
    lines = [f"::: {identifier}"]
    if options:
        lines.append("    options:")
        lines += [f"      {key}: {str(value).lower()}" for key, value in options.items()]
    return "\n".join([*lines, ""])
