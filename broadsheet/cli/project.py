"""A project of one's own: what `shardctl dev` reads of its `pyproject.toml`.

    [tool.broadsheet]
    application = "hello.app:Counter"
    journals = "journals.yaml"
    specs = "shards.yaml"

Paths are relative to the file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadsheet.runtime.errors import ValidationError

FILE: Final = "pyproject.toml"
TABLE: Final = "tool.broadsheet"
_FIELDS: Final = ("application", "journals", "specs", "summary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The table of a project."""

    application: str
    """`package.module:attribute`."""
    journals: Path | None = None
    specs: Path | None = None
    summary: str = ""
    """One sentence, of a template."""


def read_project(directory: Path) -> Project | None:
    """Return the project in a directory; None if there is none.

    Raises:
        ValidationError: the file cannot be read, or the table is wrong; the error names the field.
    """
    file = directory / FILE
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValidationError(str(file), f"cannot be read: {error}") from error
    table = document.get("tool", {}).get("broadsheet")
    if table is None:
        return None
    if not isinstance(table, dict):
        raise ValidationError(f"{file}: {TABLE}", "expected a table")
    for name, value in table.items():
        if name not in _FIELDS:
            raise ValidationError(
                f"{file}: {TABLE}.{name}", f"unknown field; expected one of {', '.join(_FIELDS)}"
            )
        if not isinstance(value, str):
            raise ValidationError(f"{file}: {TABLE}.{name}", f"expected a text, got {value!r}")
    if "application" not in table:
        raise ValidationError(f"{file}: {TABLE}.application", "expected package.module:attribute")
    return Project(
        application=table["application"],
        journals=_file_in(file, table, "journals"),
        specs=_file_in(file, table, "specs"),
        summary=table.get("summary", ""),
    )


def _file_in(project: Path, table: dict[str, str], name: str) -> Path | None:
    if name not in table:
        return None
    path = project.parent / table[name]
    if not path.is_file():
        raise ValidationError(f"{project}: {TABLE}.{name}", f"there is no file {path}")
    return path
