"""Text of a file, or of standard input: UTF-8, whatever the locale says."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from broadsheet.runtime.errors import ValidationError


def read_text(path: Path, *, option: str = "--specs") -> tuple[str, str]:
    """Return (text, name for error messages) of a file; `-` is standard input.

    Raises:
        ValidationError: it cannot be read or is not UTF-8.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            text = io.StringIO(sys.stdin.buffer.read().decode("utf-8"), newline=None).read()
        else:
            text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValidationError(option, f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValidationError(option, f"{name} is not UTF-8 text") from error
    return text, name
