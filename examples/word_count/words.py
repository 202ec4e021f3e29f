"""Splits texts into words. Pure."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
"""Letters of any alphabet, with apostrophes inside."""


def words_of(text: str) -> list[str]:
    """Return the words of a text in their order, in lower case."""
    return [word.lower() for word in _WORD.findall(text)]
