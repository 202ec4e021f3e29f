"""Decode stored JSON and msgpack documents, with one error for every way they can be wrong.

msgspec documents `MsgspecError`, but also raises `UnicodeDecodeError`, and `RecursionError` where brackets are nested
deeper than Python's recursion limit. Pure.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class DocumentError(ValueError):
    """Stored bytes are not a document of the expected kind."""


def decode_json(value: bytes | str, kind: type[T]) -> T:
    """Return a JSON document.

    Raises:
        DocumentError: the bytes are not a document of this kind.
    """
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise DocumentError(str(error)) from error


def decode_msgpack(value: bytes, kind: type[T]) -> T:
    """Return a msgpack document.

    Raises:
        DocumentError: the bytes are not a document of this kind.
    """
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise DocumentError(str(error)) from error
