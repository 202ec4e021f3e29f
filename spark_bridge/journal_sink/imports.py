"""What an application names by import path: a message class, a mapping."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from spark_bridge.errors import PublishError

_CACHED_NAMES_MAX = 64


@lru_cache(maxsize=_CACHED_NAMES_MAX)
def imported(name: str, *, option: str) -> Any:
    """Return what `module:attribute` names.

    Args:
        name: As the option has it.
        option: Its name, for the error.

    Raises:
        PublishError: it names nothing.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise PublishError(f"{option}: expected module:name, got {name!r}")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PublishError(
            f"{option}: {name} cannot be imported: {error}. Ship its module with --py-files, or install it "
            "on the driver and on every executor"
        ) from error
    return found
