"""The lineage of a journal, kept beside its fragments in a store for a broker whose disk is lost.

Without it, a broker that starts on an empty disk takes the fragments that it finds for another journal's, and each
shard that has read of them must be reset by hand. The object also names the newest fragments that were published under
this lineage. If a broker that knows nothing of it published to the store since then, the newest fragment has another
name, and the lineage counts no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from broadsheet.broker.lineage import UNKNOWN, Epoch, Lineage

OBJECT: Final = ".lineage"
"""Last part of the object's key; fragments never begin with a dot."""
VERSION: Final = 1
BYTES_MAX: Final = 64 << 10
_INCARNATION: Final = re.compile(r"(?:[0-9a-f]{2})+")


def lineage_key(journal: str) -> str:
    """Return the object's key below a store."""
    return f"{journal}/{OBJECT}"


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """A lineage, and which fragments vouch for it."""

    lineage: Lineage
    newest: frozenset[str]
    """Names, as `fragment_name` makes them, of those of which one is the newest in the store."""

    def encode(self) -> bytes:
        """Return the object's content."""
        return msgspec.json.encode(
            _Document(
                version=VERSION,
                incarnation=self.lineage.incarnation.hex(),
                epochs=self.lineage.epochs,
                newest=sorted(self.newest),
            )
        )


class _Document(msgspec.Struct, frozen=True):
    version: int
    incarnation: str
    epochs: tuple[Epoch, ...]
    newest: Sequence[str]


def decode_stored_lineage(content: bytes) -> StoredLineage:
    """Return what an object says.

    Raises:
        ValueError: it is damaged, or a later release wrote it in a form that this one does not know.
    """
    if len(content) > BYTES_MAX:
        raise ValueError(f"expected at most {BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(content, type=_Document)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    if document.version != VERSION:
        raise ValueError(
            f"expected version {VERSION}, got {document.version}: a later release wrote it; start a broker of that "
            "release on the store"
        )
    if not _INCARNATION.fullmatch(document.incarnation):
        raise ValueError(f"incarnation: expected hexadecimal bytes, got {document.incarnation!r}")
    numbers = [number for number, _, _ in document.epochs]
    begins = [begin for _, _, begin in document.epochs]
    if numbers != sorted(set(numbers)) or begins != sorted(begins):
        raise ValueError("epochs: expected ascending numbers and first bytes")
    lineage = Lineage(bytes.fromhex(document.incarnation), document.epochs)
    return StoredLineage(lineage, frozenset(document.newest))


def lineage_of_fragments(found: Iterable[StoredLineage], newest: str | None) -> Lineage:
    """Return the lineage to go on with; the unknown one if none can be trusted.

    Args:
        found: In the stores of the journal's spec.
        newest: Name of the fragment with the highest end in them; None if there is none.
    """
    trusted = [each.lineage for each in found if newest is not None and newest in each.newest]
    if len({each.incarnation for each in trusted}) != 1:
        return UNKNOWN
    return max(trusted, key=lambda each: each.epochs[-1][0] if each.epochs else 0)
