"""Rollback records in etcd: one for each journal in which a shard's producer may leave pending messages.

/broadsheet.v1{root}/rollbacks/{shard id}#{producer}#{journal}    the acknowledgement's UUID, 16 bytes, then its frame

Such a UUID is of version 1. A later release that must not be misunderstood writes a JSON document with `min_reader`,
which begins as no UUID of version 1 does.

The holder of the shard's assignment writes a record before the producer's first message in the journal. Records have
no lease, because they must outlive the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from broadsheet.allocator.errors import EtcdUnavailableError, KeyDecodeError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import SEPARATOR, AuxiliaryKeys
from broadsheet.allocator.model import Assignment
from broadsheet.allocator.ops import (
    TXN_OPERATIONS_MAX,
    Compare,
    Delete,
    Operation,
    Put,
    prefix_range_end,
)
from broadsheet.consumer.errors import AssignmentLostError
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.uuid import Flags, parse_uuid
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, LaterFormatError

ROLLBACK: Final = Format("the record of a rollback", "let a member of that release serve the shard")

_UUID_BYTES = 16

_log = structlog.get_logger()


class RollbackRecords:
    """Reads and writes the rollback records of one cluster root."""

    def __init__(self, etcd: Etcd, keys: AuxiliaryKeys) -> None:
        self._etcd = etcd
        self._prefix = keys.prefix + b"rollbacks/"

    async def of_shard(self, shard_id: str) -> list[Rollback]:
        """Return the records of a shard, by journal and producer.

        Raises:
            KeyDecodeError: a later release wrote one: without it, pending messages would wait for ever.
        """
        prefix = self._prefix + f"{shard_id}{SEPARATOR}".encode()
        result = await self._etcd.get_range(prefix, prefix_range_end(prefix))
        found = [_decoded(kv.key, kv.key[len(prefix) :], kv.value) for kv in result.kvs]
        return [rollback for rollback in found if rollback is not None]

    async def write(
        self,
        assignment: Assignment,
        *,
        keep: Iterable[Rollback] = (),
        drop: Iterable[Rollback] = (),
    ) -> None:
        """Write and delete records; retries until etcd answers.

        Args:
            assignment: Ours, of the shard whose records they are.
            keep: Each replaces what was kept for its producer and journal.
            drop: Deleted.

        Raises:
            AssignmentLostError: it is gone, or was replaced: the shard's next holder has read the records.
        """
        item_id, kv = assignment.item_id, assignment.kv
        operations: list[Operation] = [
            Put(self._key(item_id, each), each.uuid + each.content) for each in keep
        ]
        operations += [Delete(self._key(item_id, each)) for each in drop]
        ours = (Compare.create_revision(kv.key, kv.create_revision),)
        for begin in range(0, len(operations), TXN_OPERATIONS_MAX):
            part = tuple(operations[begin : begin + TXN_OPERATIONS_MAX])
            if not await self._succeeds(ours, part):
                raise AssignmentLostError(
                    f"assignment {kv.key.decode()} is gone; this process may not publish for the shard"
                )

    async def forget(self, shard_id: str, rollbacks: Iterable[Rollback]) -> None:
        """Delete records of a shard that is no more; retries until etcd answers.

        Args:
            shard_id: The shard. A later one may have its id, and has records of its own.
            rollbacks: The records.
        """
        operations = [Delete(self._key(shard_id, each)) for each in rollbacks]
        for begin in range(0, len(operations), TXN_OPERATIONS_MAX):
            await self._succeeds((), tuple(operations[begin : begin + TXN_OPERATIONS_MAX]))

    async def _succeeds(
        self, compares: tuple[Compare, ...], operations: tuple[Operation, ...]
    ) -> bool:
        backoff = Backoff()
        while True:
            try:
                return (await self._etcd.txn(compares, operations)).succeeded
            except (
                EtcdUnavailableError
            ) as error:  # A write that was applied although it seemed to fail may be applied again.
                _log.warning("rollbacks.retrying", attempt=backoff.attempt + 1, error=str(error))
                await backoff.sleep()

    def _key(self, shard_id: str, rollback: Rollback) -> bytes:
        parts = (shard_id, f"{rollback.producer:012x}", rollback.journal)
        return self._prefix + SEPARATOR.join(parts).encode()


def check_reader(value: bytes) -> None:
    """Check that a record is none that needs a later reader.

    Raises:
        LaterFormatError: it does.
    """
    if not value.startswith(b"{"):
        return
    try:
        ROLLBACK.decode_json(value, dict[str, object])
    except LaterFormatError:
        raise
    except DocumentError:
        return  # A UUID may begin with this byte.


class HeldRecords:
    """Rollback records of one shard, for the holder of its assignment."""

    def __init__(
        self, records: RollbackRecords, shard_id: str, assignment: Callable[[], Assignment]
    ) -> None:
        """Bind the records to their holder.

        Args:
            records: Of the cluster.
            shard_id: The shard.
            assignment: Returns ours, as last observed.
        """
        self.shard_id = shard_id
        self._records = records
        self._assignment = assignment

    async def read(self) -> list[Rollback]:
        """Return the records, by journal and producer."""
        return await self._records.of_shard(self.shard_id)

    async def write(self, *, keep: Iterable[Rollback] = (), drop: Iterable[Rollback] = ()) -> None:
        """Write and delete records, as `RollbackRecords.write` does.

        Raises:
            AssignmentLostError: the shard is no longer ours.
        """
        await self._records.write(self._assignment(), keep=keep, drop=drop)

    async def of_absorbed(self, shard_id: str) -> list[Rollback]:
        """Return the records of another shard, by journal and producer."""
        return await self._records.of_shard(shard_id)

    async def forget_absorbed(self, shard_id: str, rollbacks: Iterable[Rollback]) -> None:
        """Delete records of another shard, which is no more."""
        await self._records.forget(shard_id, rollbacks)


def _decoded(key: bytes, rest: bytes, value: bytes) -> Rollback | None:
    try:
        check_reader(value)
    except LaterFormatError as error:
        raise KeyDecodeError(key, str(error)) from error
    _, separator, journal = rest.partition(SEPARATOR.encode())
    producer, clock, flags = parse_uuid(value[:_UUID_BYTES].ljust(_UUID_BYTES, b"\0"))
    try:
        name = journal.decode()
    except UnicodeDecodeError:
        name = ""
    if not separator or not name or flags != Flags.ACK_TXN:
        _log.warning("rollbacks.unreadable", key=key.decode(errors="replace"))
        return None
    return Rollback(journal=name, producer=producer, clock=clock, content=value[_UUID_BYTES:])
