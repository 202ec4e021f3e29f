"""Settings whose values are in files: secrets are on each member, and in no spec and no log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from broadsheet.runtime.errors import ValidationError

FROM_FILE: Final = "@"
"""Begins a value that is the path of a file."""


def read_files(
    config: Mapping[str, Any], read: Callable[[str], str] = lambda path: Path(path).read_text()
) -> dict[str, Any]:
    """Return the settings with the contents of the files that values name, without the line's end after them.

    Raises:
        ValidationError: a file cannot be read.
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        found[name] = value
        if isinstance(value, str) and value.startswith(FROM_FILE):
            path = value.removeprefix(FROM_FILE)
            try:
                content = read(path)
            except (OSError, UnicodeDecodeError) as error:
                raise ValidationError(name, f"cannot read the file {path}: {error}") from error
            found[name] = content.rstrip("\r\n")
    return found
