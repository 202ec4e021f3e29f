"""How keys are written in names of blobs and in their metadata, which are parts of URLs and of HTTP headers.

Letters of other scripts stay; of ASCII, what a path could read as more than a letter is percent-encoded: `a/b` is
`a%2Fb`. Ids of Event Hubs' partitions are digits, and written as they are.
"""

from __future__ import annotations

import string
from typing import Final
from urllib.parse import quote, unquote

NAME_CHARACTERS_MAX: Final = 1_024
"""Longest name of a blob."""

_PLAIN: Final = frozenset(f"{string.ascii_letters}{string.digits}-_~:@+=,!$*()'&; ")
_PLAIN_LOWER: Final = _PLAIN - frozenset(string.ascii_uppercase)
_HEADER: Final = frozenset(map(chr, range(0x21, 0x7F))) - {"%"}


def encoded(key: str, *, lower: bool = False) -> str:
    """Return a key as a segment of a blob's name, different for each key.

    Args:
        key: Any text.
        lower: Encode upper-case letters too, for names that others write in lower case.
    """
    plain = _PLAIN_LOWER if lower else _PLAIN
    return "".join(
        char if char in plain or _is_letter_beyond_ascii(char, lower=lower) else _quoted(char)
        for char in key
    )


def decoded(segment: str) -> str:
    """Return the key of a segment."""
    return unquote(segment)


def header_value(text: str) -> str:
    """Return a text as the value of a header; those that are none are percent-encoded."""
    return "".join(char if char in _HEADER else _quoted(char) for char in text)


def _is_letter_beyond_ascii(char: str, *, lower: bool) -> bool:
    return not char.isascii() and char.isprintable() and (not lower or char == char.lower())


def _quoted(char: str) -> str:
    """Return a character percent-encoded, also those that `quote` takes for harmless."""
    quoted = quote(char, safe="")
    return quoted if quoted != char else f"%{ord(char):02X}"
