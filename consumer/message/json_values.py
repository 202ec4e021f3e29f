"""Values as JSON text, as they are in messages.

A number that is not finite, which JSON does not have, becomes the text `NaN`, `Infinity` or `-Infinity`, as by Spark's
sink and for Spark's readers; the encoder on its own would make null of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

_NULL: Final = b"null"
_WITHOUT_NUMBERS: Final = frozenset((str, int, bool, type(None)))
_SEQUENCES: Final = frozenset((list, tuple))
_CONTAINERS: Final = frozenset((dict, list, tuple))


def encode_value(value: Any) -> bytes:
    """Return a value as JSON on one line.

    Raises:
        ValueError: JSON cannot hold it; the message names the path of the value within.
    """
    try:
        text = _encode(value)
        # Only what became null may have been a number that is not finite.
        if _NULL in text and not is_finite(value):
            return _encode(_named(value))
    # Encoders of an application's own classes raise errors of any class.
    except Exception as error:
        raise _with_path(value, error) from error
    return text


def is_finite(value: Any) -> bool:
    """Tell whether no number in a dict, a list or a tuple, or in those that it holds, is NaN or infinite."""
    kind = type(value)
    for each in value.values() if kind is dict else value if kind in _SEQUENCES else (value,):
        kind = type(each)
        if kind is float:
            # Of NaN and of infinity this is NaN; it takes half the time of a call of `isfinite`.
            if each - each != 0.0:
                return False
        elif kind not in _WITHOUT_NUMBERS and kind in _CONTAINERS and not is_finite(each):
            return False
    return True


def _named(value: Any) -> Any:
    """Return a value with texts in the place of numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _named(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_named(each) for each in value]
    return value


def path_not_finite(message: msgspec.Struct) -> str | None:
    """Return the path of the first number in a Struct that is not finite; None if there is none."""
    return next(
        (
            path
            for path, each in _leaves(message, "")
            if isinstance(each, float) and not math.isfinite(each)
        ),
        None,
    )


def _with_path(value: Any, error: Exception) -> ValueError:
    """Return the error of a value with the path of the first part that is refused on its own."""
    for path, leaf in _leaves(value, ""):
        try:
            _encode(leaf)
        except Exception as refused:
            return ValueError(f"{path}: {refused}" if path else str(refused))
    return ValueError(str(error))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value that hold no others, with their paths; keys of dicts among them."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"{path}.{name!r} (a key)".removeprefix("."), {name: None}
            yield from _leaves(each, f"{path}.{name}" if path else f"{name}")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}[{index}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _leaves(getattr(value, name), f"{path}.{name}" if path else name)
    else:
        yield path, value


def _known(value: Any) -> Any:
    """Return times of pandas as those of Python, which are their base classes.

    Raises:
        NotImplementedError: it is neither, so that the encoder refuses it in its own words.
        ValueError: a time has parts of a microsecond.
    """
    if isinstance(value, (datetime, timedelta)):
        if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
            raise ValueError(f"{value} has parts of a microsecond")
        if isinstance(value, datetime):
            return datetime.combine(value.date(), value.timetz())
        return timedelta(days=value.days, seconds=value.seconds, microseconds=value.microseconds)
    raise TypeError(f"JSON has nothing for objects of type {type(value).__name__}")


_encode: Final = msgspec.json.Encoder(enc_hook=_known).encode
