"""Imports objects that an application names by import path: a message class, a mapping."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from broadsheet.spark_bridge.format_options import OptionError

_CACHED_NAMES_MAX = 64


@lru_cache(maxsize=_CACHED_NAMES_MAX)
def imported(name: str, *, option: str) -> Any:
    """Return the object that `module:attribute` names.

    Args:
        name: The option's value.
        option: The option's name, for the error.

    Raises:
        OptionError: it names nothing.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise OptionError(option, "module:name", got=name)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        expected = (
            "module:name of something that the driver and every executor can import, installed or shipped with "
            f"--py-files ({error})"
        )
        raise OptionError(option, expected, got=name) from error
    return found
