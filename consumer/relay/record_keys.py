"""Keys of records: a field of JSON messages, without decoding the rest of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from broadsheet.runtime.errors import ValidationError

KeyOf: TypeAlias = Callable[[bytes], bytes | None]
_NO_VALUE: Final = msgspec.Raw(b"")


def json_key(path: str) -> KeyOf:
    """Return what finds a field of JSON messages.

    Args:
        path: Its name, with dots between nested ones, such as `user.id`.

    Returns:
        A function that returns the field of a payload: of a text its UTF-8, of another value its JSON; None if there
        is none, or null. It raises `ValueError` for a payload that is no JSON object.

    Raises:
        ValidationError: a part of the path is empty.
    """
    names = path.split(".")
    if not all(names):
        raise ValidationError("key", f"expected names with dots between them, got {path!r}")
    decoder = msgspec.json.Decoder(_shape(names))
    depth = len(names)

    def key_of(payload: bytes) -> bytes | None:
        found: Any = decoder.decode(payload)
        for _ in range(depth):
            found = found.value
            if found is None:
                return None
        raw = bytes(found)
        if not raw or raw == b"null":
            return None
        if raw[:1] == b'"':
            text: str = msgspec.json.decode(raw)
            return text.encode()
        return raw

    return key_of


def _shape(names: list[str]) -> type[msgspec.Struct]:
    """Return a structure of one field for each name, which skips all others."""
    first, *rest = names
    # A class is made at run time, so its field's type and default are too.
    field: tuple[str, Any, Any] = (
        ("value", _shape(rest) | None, None) if rest else ("value", msgspec.Raw, _NO_VALUE)
    )
    return msgspec.defstruct("Keyed", [field], rename={"value": first})
