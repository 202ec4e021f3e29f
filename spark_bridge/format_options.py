"""Reads a format's options; the error of a wrong one says what was expected.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from broadsheet.spark_bridge.errors import SparkBridgeError

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
