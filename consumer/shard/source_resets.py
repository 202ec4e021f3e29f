"""Source resets, stored in etcd until a shard's primary has committed them.

/broadsheet.v1{root}/source-resets/{shard id}#{journal}    a SourceResetRecord

A reset lets a shard's checkpoint continue at another offset of a journal that was replaced:

    asked for ─► stored in etcd ─► the next primary finds its checkpoint contradicted ─► applied, in memory
                                                                     its first transaction commits it ─► deleted

A checkpoint names the last reset that was applied to a source, so each is applied once, however often a primary dies
in between. Commits of producers stay known: messages that were counted before, and were published again into the new
journal, are not counted twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import SEPARATOR, AuxiliaryKeys
from broadsheet.allocator.ops import Compare, Delete, KeyValue, Put, prefix_range_end
from broadsheet.journals.guard import Present, RememberedOffset, standing
from broadsheet.runtime.formats import Format, LaterFormatError
from broadsheet.wire.identity_pb2 import JournalEpoch
from broadsheet.wire.recovery_pb2 import SourceResetRecord
from broadsheet.wire.shard_pb2 import Checkpoint

SOURCE_RESET: Final = Format("a reset of a source", "ask for it again with this release")

_log = structlog.get_logger()

NOTHING_PENDING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReset:
    """The reset that an operator asked for."""

    id: bytes
    """Drawn at random; no other reset has it."""
    journal: str
    """The source, with its `;meta` if it has one."""
    offset: int
    """Where reading goes on, bytes."""
    epoch: JournalEpoch | None
    """Of the journal that was looked at when it was asked for; None if its broker tells none."""


def was_applied(reset: SourceReset, checkpoint: Checkpoint) -> bool:
    """Report whether a checkpoint already includes the reset."""
    source = checkpoint.sources.get(reset.journal)
    return source is not None and source.reset == reset.id


def is_of(reset: SourceReset, present: Present) -> bool:
    """Report whether a reset was meant for the present journal, and not for one before it."""
    if reset.epoch is not None and present.identity is None:
        return False
    return standing(reset.offset, reset.epoch, present) is RememberedOffset.SAME and (
        reset.epoch is None
        or present.identity is None
        or reset.epoch.incarnation == present.identity.incarnation
    )


def apply_reset(reset: SourceReset, checkpoint: Checkpoint) -> None:
    """Make a checkpoint continue at the offset of a reset."""
    source = checkpoint.sources[reset.journal]
    source.read_through = reset.offset
    source.reset = reset.id
    source.ClearField("epoch")
    if reset.epoch is not None:
        source.epoch.CopyFrom(reset.epoch)
    for producer in source.producers:
        # Its pending messages were at offsets of the other journal.
        producer.state.begin = NOTHING_PENDING


class SourceResets:
    """Reads and writes the resets of one cluster root."""

    def __init__(self, etcd: Etcd, keys: AuxiliaryKeys) -> None:
        self._etcd = etcd
        self._prefix = keys.prefix + b"source-resets/"

    def put(self, shard_id: str, reset: SourceReset) -> Put:
        """Return the operation that stores a reset; it replaces an earlier one of the same source."""
        record = SourceResetRecord(id=reset.id, offset=reset.offset, epoch=reset.epoch)
        return Put(self._key(shard_id, reset.journal), record.SerializeToString())

    async def find(self, shard_id: str, journal: str) -> SourceReset | None:
        """Return the stored reset of a source; None if there is none.

        Raises:
            KeyDecodeError: it cannot be read, or a later release wrote it: ask for it again.
            EtcdUnavailableError: etcd did not answer.
        """
        kv = await self._get(shard_id, journal)
        if kv is None:
            return None
        try:
            record = SourceResetRecord.FromString(kv.value)
            SOURCE_RESET.check(record.min_reader)
        except LaterFormatError as error:
            raise KeyDecodeError(kv.key, str(error)) from error
        except DecodeError as error:
            raise KeyDecodeError(kv.key, f"expected a reset; ask for it again: {error}") from error
        return SourceReset(
            id=record.id,
            journal=journal,
            offset=record.offset,
            epoch=record.epoch if record.HasField("epoch") else None,
        )

    async def drop(self, shard_id: str, journals: Collection[str]) -> None:
        """Delete the resets of some sources, except those that are being replaced at the same time.

        Raises:
            EtcdUnavailableError: etcd did not answer; what is left on file does no harm.
        """
        prefix = self._key(shard_id, "")
        found = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        for kv in found.kvs:
            journal = kv.key[len(prefix) :].decode()
            if journal in journals:
                unchanged = Compare.mod_revision(kv.key, kv.mod_revision)
                await self._etcd.txn((unchanged,), (Delete(kv.key),))
                _log.info("source_reset.deleted", shard=shard_id, journal=journal)

    async def _get(self, shard_id: str, journal: str) -> KeyValue | None:
        found = await self._etcd.get_range(self._key(shard_id, journal))
        return found.kvs[0] if found.kvs else None

    def _key(self, shard_id: str, journal: str) -> bytes:
        return self._prefix + SEPARATOR.join((shard_id, journal)).encode()
