"""Alphabets and lengths of every identifier on the wire.

Lengths are counted in UTF-8 bytes, letters and numbers are Unicode's (categories L* and N*).

Source: gazette/core broker/protocol/validator.go (ValidateToken, ValidatePathComponent), journal_spec_extensions.go
(Journal.Split).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType

from broadsheet.runtime.errors import ValidationError

TOKEN_SYMBOLS = "-_+/."  # noqa: S105 - an alphabet, not a secret
"""Characters allowed in a token beside letters and numbers."""
PATH_SYMBOLS = TOKEN_SYMBOLS + "=%"
"""Characters allowed in a path component beside letters and numbers."""
JOURNAL_NAME_BYTES = (4, 512)
"""Shortest and longest journal name, bytes."""
META_BYTES = (1, 512)
"""Shortest and longest `;meta` of a journal name, without the semicolon, bytes."""
_MEASURED_MAX = 4096
"""Number of texts whose measured length is cached, because a process gets the same names repeatedly."""
_SHOWN_CHARACTERS = 80
"""Length at which an invalid text is cut in a message, characters."""


class within:  # noqa: N801 - used like a function
    """Prefix `parent` to the path of a ValidationError raised inside the block."""

    # A class, because a listing enters several of these for each shard, and a generator takes three times as long.
    __slots__ = ("_parent",)

    def __init__(self, parent: str) -> None:
        self._parent = parent

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ValidationError):
            raise error.under(self._parent) from error.__cause__


def below(parent: str, field: str) -> str:
    """Return the path of a field inside `parent`, which may be empty."""
    return f"{parent}.{field}" if parent else field


def shown(text: str) -> str:
    """Return `text` quoted for a message, cut if it is long."""
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return repr(cut)


def require(condition: bool, field_path: str, problem: str) -> None:
    """Raise unless `condition` holds.

    Raises:
        ValidationError: with this path and problem.
    """
    if not condition:
        raise ValidationError(field_path, problem)


def validate_alphabet(
    text: str, field_path: str, *, symbols: str, bytes_range: tuple[int, int]
) -> None:
    """Check the length and the characters of an identifier.

    Args:
        text: The identifier.
        field_path: Path of its field.
        symbols: What it may hold beside letters and numbers.
        bytes_range: Shortest and longest length, bytes, both inclusive.

    Raises:
        ValidationError: it is too short, too long or holds another character.
    """
    low, high = bytes_range
    # Nearly all are good ASCII names, and a listing checks tens of thousands.
    if low <= len(text) <= high and _ascii_name(symbols)(text):
        return
    # Measured texts are cached, so a text that is far too long must not be measured.
    if len(text) > high:
        length = len(text.encode(errors="surrogatepass"))
        raise ValidationError(
            field_path, f"expected {low} to {high} bytes, got {length} ({shown(text)})"
        )
    length, stranger = _measured(text, symbols)
    # The message is made only for a bad name, because names are checked with every request.
    if not low <= length <= high:
        raise ValidationError(
            field_path, f"expected {low} to {high} bytes, got {length} ({shown(text)})"
        )
    if stranger is not None:
        raise ValidationError(
            field_path,
            f"expected letters, numbers and {symbols!r} only, got {stranger!r} in {shown(text)}",
        )


@lru_cache(maxsize=16)
def _ascii_name(symbols: str) -> Callable[[str], object]:
    """Return what matches texts of ASCII letters, numbers and symbols."""
    return re.compile(f"[A-Za-z0-9{re.escape(symbols)}]*").fullmatch


@lru_cache(maxsize=_MEASURED_MAX)
def _measured(text: str, symbols: str) -> tuple[int, str | None]:
    """Return the length in bytes, and the first character that is not a letter, number or symbol."""
    strangers = (one for one in text if not (one.isalnum() or one in symbols))
    return len(text.encode(errors="surrogatepass")), next(strangers, None)


def validate_token(text: str, field_path: str, *, bytes_range: tuple[int, int]) -> None:
    """Check an identifier made of letters, numbers and `-_+/.`.

    Raises:
        ValidationError: it breaks the alphabet or the length.
    """
    validate_alphabet(text, field_path, symbols=TOKEN_SYMBOLS, bytes_range=bytes_range)


def validate_path_component(text: str, field_path: str, *, bytes_range: tuple[int, int]) -> None:
    """Check a clean relative path made of letters, numbers and `-_+/.=%`.

    A leading `../` is clean and passes, so code that makes files from names must escape them.

    Raises:
        ValidationError: it breaks the alphabet or the length, is absolute, or is not clean.
    """
    validate_alphabet(text, field_path, symbols=PATH_SYMBOLS, bytes_range=bytes_range)
    if text.startswith("/"):
        raise ValidationError(field_path, f"expected no leading '/', got {shown(text)}")
    clean = cleaned_path(text)
    if clean != text:
        raise ValidationError(
            field_path, f"expected a clean path such as {shown(clean)}, got {shown(text)}"
        )


@lru_cache(maxsize=_MEASURED_MAX)
def cleaned_path(text: str) -> str:
    """Return a path without redundant parts."""
    return posixpath.normpath(text)


def split_journal(journal: str) -> tuple[str, str]:
    """Return the bare name and the meta of `name;meta`; the meta is empty if there is none."""
    name, _, meta = journal.partition(";")
    return name, meta


# Only good names are cached; each append and read checks the same ones several times, on both sides.
@lru_cache(maxsize=_MEASURED_MAX)
def validate_journal_name(name: str, field_path: str = "journal") -> None:
    """Check a bare journal name.

    Raises:
        ValidationError: it is no path component of 4 to 512 bytes, or carries a `;meta`.
    """
    validate_path_component(name, field_path, bytes_range=JOURNAL_NAME_BYTES)


@lru_cache(maxsize=_MEASURED_MAX)
def validate_journal(journal: str, field_path: str = "journal") -> None:
    """Check a journal name that may carry `;meta`, as requests and shard sources do.

    Raises:
        ValidationError: the name or its meta is malformed.
    """
    name, separator, meta = journal.partition(";")
    validate_journal_name(name, field_path)
    if separator:
        validate_path_component(meta, f"{field_path}.meta", bytes_range=META_BYTES)
