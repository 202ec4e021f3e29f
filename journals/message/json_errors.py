"""Reasons why a payload is not a JSON message, in words that say what to change.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

from broadsheet.journals.message.json_columns import BYTE_ORDER_MARK

_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_HIGH_BEGIN, _LOW_BEGIN, _LOW_END = 0xD800, 0xDC00, 0xE000
"""Code units of surrogate pairs: a high one, then a low one."""


def why_not_json(payload: bytes, error: Exception) -> str:
    """Return the reason why a decoder refuses a payload.

    Args:
        payload: The payload.
        error: Of the decoder, which says of half a surrogate pair that data was truncated.
    """
    if payload.startswith(BYTE_ORDER_MARK):
        return "it begins with a byte order mark, which JSON messages must not have; write UTF-8 without one"
    half = lone_surrogate(payload)
    if half is not None:
        return (
            f"the escape {half} is half of a surrogate pair, and no character; the publisher must write "
            "both halves, or the character itself"
        )
    return str(error)


def lone_surrogate(payload: bytes) -> str | None:
    r"""Return the first escape such as `\ud83d` whose other half is missing; None if there is none."""
    high: tuple[str, int] | None = None
    for escape in _ESCAPE.finditer(payload):
        digits = escape.group(1)
        unit = int(digits, 16) if digits else 0
        follows = high is not None and escape.start() == high[1]
        if high is not None and not (follows and _LOW_BEGIN <= unit < _LOW_END):
            return high[0]
        if high is None and _LOW_BEGIN <= unit < _LOW_END:
            return escape.group().decode("ascii")
        is_high = _HIGH_BEGIN <= unit < _LOW_BEGIN
        high = (escape.group().decode("ascii"), escape.end()) if is_high else None
    return high[0] if high is not None else None
