"""The document of an import: the variables, files, times and positions of a state that another system kept.

    PLACE/manifest.json               written last: a place without it is no import
    PLACE/OWNER/VARIABLE-NAME.arrow   rows of one variable, a stream of Arrow, for the shard of one owner

An owner is a journal whose keys are in its folder, or nothing: then one shard owns all keys. Files that the manifest
does not name are left over from an attempt that ended early; nothing reads them.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format

MANIFEST: Final = "manifest.json"
_FORMAT: Final = Format("the manifest of an import", "let a member of that release import it")
KEY: Final = "key"
"""Column of all files: a struct of the key's fields."""
USER_KEY: Final = "user_key"
"""Column of maps: a struct of the fields of an entry's key."""
VALUE: Final = "value"
"""Column of variables: a struct of the fields of a value."""
EXPIRY: Final = "expiry_ms"
"""Column of variables that expire, and of timers: epoch milliseconds; null: never."""

Kind = Literal["ValueState", "ListState", "MapState"]


class ImportedVariable(msgspec.Struct, frozen=True):
    """A variable, as the other system declares it."""

    name: str
    kind: Kind
    schema: bytes
    """Of its values, as Arrow serialises a schema."""
    user_key: bytes = b""
    """Of the keys of a map's entries."""


class ImportedFile(msgspec.Struct, frozen=True):
    """A file of rows."""

    path: str
    """Below the place."""
    owner: str
    """The journal whose shard owns the keys; empty: they are of one shard."""
    variable: str
    """Its name; empty: the file has timers."""
    rows: int
    """Values, elements, entries, or timers."""


class ImportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """An import."""

    id: str
    """Another one for each import."""
    origin: str
    """The source of it, for people."""
    key: bytes
    """Schema of the keys, as Arrow serialises it."""
    variables: list[ImportedVariable]
    files: list[ImportedFile]
    time_mode: str = "none"
    """The kind of time of its timers, as an application names it."""
    shard: str = ""
    """Id of the one shard that owns all keys; empty: journals own them."""
    batch_ms: int = 0
    """Time of the last batch that the other system committed, epoch milliseconds."""
    late_ms: int = 0
    """Watermark of that batch: by it the next one judges rows."""
    watermark_ms: int = 0
    """Watermark of the next batch."""
    positions: dict[str, bytes] = {}
    """By journal, a `Checkpoint.Source`: up to where it was read."""
    told: list[str] = []
    """Positions in other sources, for people."""
    meta: dict[str, str] = {}
    """Names and contents that the state has beside its rows, such as the time mode."""
    min_reader: int = 1

    def encode(self) -> bytes:
        """Return the document."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    def files_of(self, owners: Iterable[str]) -> Sequence[ImportedFile]:
        """Return the files of some owners, in an order that stays."""
        wanted = set(owners)
        found = [each for each in self.files if each.owner in wanted]
        return sorted(found, key=lambda each: (each.variable, each.path))

    def counts_of(self, owners: Iterable[str]) -> Mapping[str, int]:
        """Return the rows of each variable that some owners have; timers under the empty name."""
        counts = dict.fromkeys([*(each.name for each in self.variables), ""], 0)
        for each in self.files_of(owners):
            counts[each.variable] += each.rows
        return counts


def decode_manifest(content: bytes) -> ImportManifest:
    """Return the manifest that `encode` gave.

    Raises:
        DocumentError: it is none, or a later release wrote it.
    """
    manifest = _FORMAT.decode_json(content, ImportManifest)
    names = [each.name for each in manifest.variables]
    for file in manifest.files:
        if file.variable and file.variable not in names:
            raise DocumentError(
                f"files: expected a variable among {', '.join(names)}, got {file.variable!r}"
            )
    return manifest
