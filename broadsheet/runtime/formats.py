"""Versions of stored formats: the least reader that a document needs, and the refusal of a document of a later release.

A reader ignores the fields that it does not know, so that a later release may add some. If a field must not be ignored,
the release that adds it writes `min_reader` into the document, and raises the number of its own readers. A document
without `min_reader` needs reader 1. Members of two releases may share a cluster, so the refusal is a decision about one
document, never a reason to remove or to replace it.

What an earlier member would misunderstand, and not refuse, is stored only if each live member reads it. For that a
cluster has a *level*, which only rises (`broadsheet.allocator.format_gate`). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

import msgspec

from broadsheet.runtime.documents import DocumentError, decode_json

MIN_READER: Final = "min_reader"
"""Name of the field in JSON documents and in protobuf messages of ours."""

T = TypeVar("T")


class FormatLevel(IntEnum):
    """Levels of stored formats, lowest first. A release that stores something new of this kind adds one."""

    FIRST = 1
    """Releases that tell no level, and Gazette's members."""
    KEY_RANGES = 2
    """Shards that own a range of keys: others would handle the keys of all."""
    DIVIDED_JOURNALS = 3
    """Sources that are read behind others: earlier members would read them at once, and publish where none reads."""


LEVEL: Final = int(max(FormatLevel))
"""The highest level that this release reads."""


class LaterFormatError(DocumentError):
    """A later release wrote a document, in a form that this release must not read."""


class _Probe(msgspec.Struct):
    min_reader: object = 1


@dataclass(frozen=True, slots=True)
class Format:
    """A stored format, and the newest form of it that this release reads."""

    name: str
    """Of a document, for messages: `the head of a leader's plan`."""
    remedy: str
    """The next step of an operator, for messages."""
    reader: int = 1
    """Number of this reader."""

    def check(self, needed: object) -> None:
        """Check the reader that a document needs.

        Args:
            needed: The document's `min_reader`. 0 means 1: protobuf does not tell the two apart.

        Raises:
            LaterFormatError: this reader is older, or the number is none.
        """
        if isinstance(needed, int) and needed <= self.reader:
            return
        raise LaterFormatError(
            f"{MIN_READER}: a later release wrote {self.name}, for readers from number {needed} on, and this one is "
            f"{self.reader}: {self.remedy}"
        )

    def decode_json(self, value: bytes | str, kind: type[T]) -> T:
        """Return a JSON document.

        Raises:
            LaterFormatError: it needs a later reader.
            DocumentError: the bytes are not a document of this kind.
        """
        # First, because a later release may have changed the fields, and the document is not damaged then.
        self.check(decode_json(value, _Probe).min_reader)
        return decode_json(value, kind)
