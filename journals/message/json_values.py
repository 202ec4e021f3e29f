"""Values as JSON text, as they are in messages.

A number that is not finite, which JSON does not have, becomes the text `NaN`, `Infinity` or `-Infinity`, as by Spark's
sink and for Spark's readers; the encoder on its own would make null of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

_NULL: Final = b"null"
_WITHOUT_NUMBERS: Final = frozenset(
    (str, int, bool, type(None), msgspec.UnsetType, bytes, datetime)
)
_SEQUENCES: Final = frozenset((list, tuple))


def encode_value(value: Any) -> bytes:
    """Return a value as JSON on one line.

    Raises:
        ValueError: JSON cannot hold it; the message names the path of the value within.
    """
    try:
        text = _encode(value)
        # Only what became null may have been a number that is not finite.
        if _NULL in text and not is_finite(value):
            return _encode(_named(_built_in(value)))
    # Encoders of an application's own classes raise errors of any class.
    except Exception as error:
        raise _with_path(value, error) from error
    return text


def is_finite(value: Any) -> bool:
    """Tell whether no number in a value, or in what it holds, is NaN or infinite."""
    kind = type(value)
    parts: Iterable[Any]
    if kind is dict:
        parts = value.values()
    elif kind in _SEQUENCES:
        parts = value
    elif isinstance(value, msgspec.Struct):
        parts = msgspec.structs.astuple(value)
    else:
        parts = (value,)
    for each in parts:
        kind = type(each)
        if kind is float:
            # Of NaN and of infinity this is NaN; it takes half the time of a call of `isfinite`.
            if each - each != 0.0:
                return False
        elif kind not in _WITHOUT_NUMBERS and not _holds_finite(each, kind):
            return False
    return True


def _holds_finite(value: Any, kind: type) -> bool:
    if kind is dict or kind in _SEQUENCES or isinstance(value, msgspec.Struct):
        return is_finite(value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (dict, list, tuple, set, frozenset)) or is_dataclass(value):
        plain = _built_in(value)
        return type(plain) is kind or is_finite(plain)
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
    if is_finite(message):
        return None
    found = (
        path
        for path, each in _leaves(message, "")
        if isinstance(each, float) and not math.isfinite(each)
    )
    return next(found, "a number")


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


def _built_in(value: Any) -> Any:
    """Return a value as dicts, lists and plain values, as the encoder would write it."""
    return msgspec.to_builtins(value, enc_hook=_known, str_keys=True)


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
