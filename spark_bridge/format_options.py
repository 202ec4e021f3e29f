"""Reads a format's options, and what they name; the error of a wrong one says what was expected."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from broadsheet.spark_bridge.errors import SparkBridgeError

_CACHED_NAMES_MAX = 64
_FLAGS = {"true": True, "false": False}


class OptionError(SparkBridgeError):
    """An option of a format is wrong."""

    def __init__(self, name: str, expected: str, *, got: str | None) -> None:
        shown = "it is not set" if got is None else f"got {got!r}"
        super().__init__(f"option {name}: expected {expected}; {shown}")
        self.name = name
        self.expected = expected


class FormatOptions:
    """The options of one format, with case-insensitive names."""

    def __init__(self, options: Mapping[str, str], *, known: Collection[str]) -> None:
        """Take the options.

        Raises:
            OptionError: one is unknown; a misspelt one would otherwise be ignored without notice.
        """
        names = {name.lower() for name in known}
        self._values = {name.lower(): str(value) for name, value in options.items()}
        for name in sorted(self._values.keys() - names):
            raise OptionError(name, f"one of {', '.join(sorted(known))}", got=name)

    def text_or_none(self, name: str) -> str | None:
        """Return an option's text; None if it is not set."""
        return self._values.get(name.lower())

    def text(self, name: str, expected: str) -> str:
        """Return an option's text.

        Raises:
            OptionError: it is not set, or empty.
        """
        value = self.text_or_none(name)
        if value is None or not value.strip():
            raise OptionError(name, expected, got=value)
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return whether an option is `true`.

        Raises:
            OptionError: it is neither `true` nor `false`.
        """
        value = self.text_or_none(name)
        if value is None:
            return default
        if value.strip().lower() not in _FLAGS:
            raise OptionError(name, "true or false", got=value)
        return _FLAGS[value.strip().lower()]

    def count_or_none(self, name: str, expected: str) -> int | None:
        """Return an option's number, at least 1; None if it is not set.

        Raises:
            OptionError: it is not a number of at least 1.
        """
        value = self.text_or_none(name)
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise OptionError(name, expected, got=value)
        return int(value)


@lru_cache(maxsize=_CACHED_NAMES_MAX)
def imported(name: str, *, option: str) -> Any:
    """Return the object that an option names by `module:attribute`: a message class, a mapping.

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
