"""The `--specs` option: a file, or `-` for standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allocator.errors import ValidationError

specs_option = click.option(
    "--specs",
    required=True,
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    help="YAML file of specs; - reads standard input.",
)


def read_text(path: Path) -> tuple[str, str]:
    """Return (text, name for error messages) of a specs file.

    Raises:
        ValidationError: it cannot be read or is not UTF-8.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValidationError("--specs", f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValidationError("--specs", f"{name} is not UTF-8 text") from error
    return text, name
