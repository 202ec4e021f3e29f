"""The level of a cluster's stored formats: who may join, and up to where it may rise. Pure.

A member that stores what members of earlier releases would misunderstand raises the level first. That needs each live
member to read the new level, and from then on no member that does not may join. The level never falls: what was stored
at it stays. An absent record is the first level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from broadsheet.allocator.errors import FormatLevelError
from broadsheet.allocator.ops import Compare, KeyValue
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, FormatLevel

RECORD = Format("the cluster's level of formats", "start that release, or a later one")
NAMED_MAX = 5


class _Record(msgspec.Struct):
    level: int
    release: str = ""
    """Of the member that raised it, for messages."""


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """The level as etcd has it."""

    level: int = FormatLevel.FIRST
    release: str = ""
    mod_revision: int = 0
    """Of its key; 0: there is none."""

    def unchanged(self, key: bytes) -> Compare:
        """Return what holds as long as the level is this one."""
        return Compare.mod_revision(key, self.mod_revision)


def decode_level(kv: KeyValue | None) -> StoredLevel:
    """Return the level that a key holds.

    Raises:
        FormatLevelError: the record is none that this release reads.
    """
    if kv is None:
        return StoredLevel()
    try:
        record = RECORD.decode_json(kv.value, _Record)
    except DocumentError as error:
        raise FormatLevelError(f"etcd key {kv.key.decode()!r}: {error}") from error
    return StoredLevel(record.level, record.release, kv.mod_revision)


def encode_level(level: int, release: str) -> bytes:
    """Return the record of a level that a release raises."""
    return msgspec.json.encode(_Record(level, release))


def check_joining(stored: StoredLevel, own: int) -> None:
    """Check that a member may join.

    Args:
        stored: The cluster's level.
        own: The highest level that the member reads.

    Raises:
        FormatLevelError: it reads a lower one.
    """
    if own >= stored.level:
        return
    by = f" by release {stored.release}" if stored.release else ""
    raise FormatLevelError(
        f"the stored formats of this cluster were raised to level {stored.level}{by}, and this release reads them up "
        f"to level {own}: start that release, or a later one (docs/deploy/upgrades.md)"
    )


def check_rise(level: int, levels: Mapping[str, int], *, what: str) -> None:
    """Check that the cluster may rise to a level.

    Args:
        level: Of what is to be stored.
        levels: The highest level that each live member reads, by its name.
        what: Is to be stored, for messages.

    Raises:
        FormatLevelError: a member reads a lower one; the message names it.
    """
    below = sorted(member for member, own in levels.items() if own < level)
    if not below:
        return
    more = f" and {len(below) - NAMED_MAX} more" if len(below) > NAMED_MAX else ""
    raise FormatLevelError(
        f"{what} needs stored formats of level {level}, which members of an earlier release do not read: "
        f"{', '.join(below[:NAMED_MAX])}{more}; replace them by members of this release, then try again"
    )
