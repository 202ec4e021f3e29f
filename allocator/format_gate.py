"""Keeps the level of a cluster's stored formats in etcd, by the rules of `broadsheet.allocator.format_levels`.

A member's announcement compares the level by which it was admitted, and a rise compares that no member was announced
since all were read: of two that happen at once, the one that loses is judged again.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from broadsheet.allocator.errors import FormatLevelError, TxnConflictError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.prefix_mirror import PrefixMirror
from broadsheet.allocator.format_levels import (
    StoredLevel,
    check_joining,
    check_rise,
    decode_level,
    encode_level,
)
from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.ops import Compare, Put, prefix_range_end
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.formats import LEVEL
from broadsheet.runtime.installed_version import installed_version

ATTEMPTS = 10
"""Tries of a rise while members join."""

_log = structlog.get_logger()


class FormatGate:
    """One member's view of the level, and its way to raise it."""

    def __init__(
        self, etcd: Etcd, keys: Keys, *, level_of: Callable[[bytes], int], own: int = LEVEL
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            etcd: Has the level, and the members.
            keys: The syntax of the root.
            level_of: Returns the highest level that a member reads, of its value; the lowest if that cannot be decoded.
            own: The highest level that this member reads.
        """
        self._etcd = etcd
        self._keys = keys
        self._level_of = level_of
        self._own = own
        self._key = AuxiliaryKeys(keys.root).formats
        self._stored = StoredLevel()
        self._on_rise: Callable[[], None] = lambda: None
        self._mirror = PrefixMirror(etcd, self._key, on_update=self._on_update, backoff=Backoff())

    @property
    def own(self) -> int:
        """The highest level that this member reads."""
        return self._own

    @property
    def level(self) -> int:
        """The cluster's level as far as it is known here: up to it, anything may be stored."""
        return self._stored.level

    async def admit(self) -> Compare:
        """Return what the announcement of this member must compare.

        Raises:
            FormatLevelError: this release cannot read what the cluster has stored.
            EtcdUnavailableError: etcd did not answer.
        """
        stored = await self._read()
        check_joining(stored, self._own)
        return stored.unchanged(self._key)

    async def require(self, level: int, *, what: str) -> None:
        """Return once the cluster's level is at least this one; raise it if need be.

        Args:
            level: Of what is to be stored.
            what: That is, for messages.

        Raises:
            FormatLevelError: a live member does not read the level.
            TxnConflictError: members joined again and again meanwhile.
            EtcdUnavailableError: etcd did not answer.
        """
        for _ in range(ATTEMPTS):
            stored = await self._read()
            if stored.level >= level:
                return
            revision, levels = await self._members()
            check_rise(level, levels, what=what)
            result = await self._etcd.txn(
                (
                    stored.unchanged(self._key),
                    Compare.none_created_after(self._keys.members_prefix, revision),
                ),
                (Put(self._key, encode_level(level, installed_version())),),
            )
            if result.succeeded:
                self._take(StoredLevel(level, installed_version(), result.header.revision))
                _log.info("formats.raised", level=level, revision=result.header.revision)
                return
        raise TxnConflictError((self._key,))

    def on_rise(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a higher level becomes known here: what was judged by the lower one may be wrong.

        The watch of the level may lag behind that of the members, so that one that joined after the rise is seen first.
        """
        self._on_rise = callback

    async def watch(self) -> None:
        """Follow the level, for ever."""
        await self._mirror.watch()

    async def _members(self) -> tuple[int, dict[str, int]]:
        """Return the levels that members read, and the revision of etcd as of which they are all.

        Not from the mirror, which lacks members that have just joined, and those of which it decodes nothing.
        """
        prefix = self._keys.members_prefix
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        levels = {
            kv.key.removeprefix(prefix).decode(errors="replace"): self._level_of(kv.value)
            for kv in found.kvs
        }
        return found.header.revision, levels

    async def _read(self) -> StoredLevel:
        found = await self._etcd.get_range(self._key)
        self._take(decode_level(found.kvs[0] if found.kvs else None))
        return self._stored

    def _on_update(self) -> None:
        try:
            self._take(decode_level(self._mirror.kvs.get(self._key)))
        except FormatLevelError as error:
            # A later release leads the cluster: what is known here stays true, because levels only rise.
            _log.warning("formats.unreadable", cause=str(error))

    def _take(self, stored: StoredLevel) -> None:
        # A read and the watch may overtake each other.
        if stored.mod_revision < self._stored.mod_revision:
            return
        has_risen = stored.level > self._stored.level
        self._stored = stored
        if has_risen:
            self._on_rise()
