"""What the project says of itself."""

from __future__ import annotations

import re
import tomllib

from tests.support.documents import REPOSITORY

_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def supported_pythons() -> list[str]:
    """Return the versions that the classifiers name, as `3.12`, ascending."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = [_PYTHON.fullmatch(each) for each in project["classifiers"]]
    return [each[1] for each in named if each]
