"""Names of a release's doors, which were elsewhere in the previous release."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def found(name: str, *modules: str) -> Any:  # Any: the types of whichever release runs.
    """Return the name from the first module that has it.

    Raises:
        ImportError: none has.
    """
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"{name} is in none of {', '.join(modules)}")
