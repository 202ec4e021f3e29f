"""Records of commits in etcd, which alone decide whether rows were published.

    {root}.publications/{name}      a DataFrame published under a name: written once, if it is absent
    {root}.queries/{query}          the latest micro-batch of a streaming query: replaced by the next one's, and by
                                    nothing else, so an older batch that is repeated is known to be committed

A record is pruned after its retention (`prune`): after that, a publication of its name publishes again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

from broadsheet.allocator.documents import decode_json
from broadsheet.allocator.ops import Compare, Delete, Get, KeyValue, Put, prefix_range_end
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.keys import publication_key, query_key

if TYPE_CHECKING:
    from broadsheet.allocator.etcd.client import EtcdClient

_log = structlog.get_logger()
_DAY_SECONDS = 86_400.0


RECORD_BYTES_MAX = 1 << 20
"""Largest record: etcd refuses requests of more than 1.5 MiB. Some 8,000 tasks fit."""
NO_BATCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """The uncommitted messages of one successful attempt of a task."""

    messages: int
    acknowledgement: bytes
    """Framed; commits the attempt's messages in each of its journals."""
    journals: tuple[str, ...]
    """Journals that it wrote to."""


class Publication(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published DataFrame or micro-batch, as etcd keeps it: enough to acknowledge it any number of times."""

    messages: int
    """Messages published."""
    acknowledgements: list[bytes]
    """Framed acknowledgements, one for each attempt that wrote anything."""
    attempts: dict[str, str]
    """Attempts that wrote to each journal: a hexadecimal number whose bit i means `acknowledgements[i]`."""
    committed_at: float = 0.0
    """Wall time, seconds since the Unix epoch."""
    batch: int = NO_BATCH
    """Number of the micro-batch; -1 for a batch write."""

    @property
    def intents(self) -> dict[str, bytes]:
        """Content to append to each journal at once: acknowledgements of all attempts that wrote to it."""
        return {
            journal: b"".join(
                acknowledgement
                for index, acknowledgement in enumerate(self.acknowledgements)
                if int(bits, 16) >> index & 1
            )
            for journal, bits in self.attempts.items()
        }


def publication_of(attempts: Iterable[CommitAttempt], *, batch: int = NO_BATCH) -> Publication:
    """Return the publication that commits the attempts."""
    written = [attempt for attempt in attempts if attempt.journals]
    bits: dict[str, int] = {}
    for index, attempt in enumerate(written):
        for journal in attempt.journals:
            bits[journal] = bits.get(journal, 0) | 1 << index
    return Publication(
        messages=sum(attempt.messages for attempt in written),
        acknowledgements=[attempt.acknowledgement for attempt in written],
        attempts={journal: f"{bits[journal]:x}" for journal in sorted(bits)},
        committed_at=time.time(),
        batch=batch,
    )


def encoded(publication: Publication) -> bytes:
    """Return a publication's value in etcd.

    Raises:
        PublishError: etcd would refuse it.
    """
    value = msgspec.json.encode(publication)
    if len(value) > RECORD_BYTES_MAX:
        raise PublishError(
            f"{len(publication.acknowledgements)} tasks wrote to {len(publication.attempts)} journals, and their "
            f"acknowledgements take {len(value)} bytes; etcd keeps {RECORD_BYTES_MAX}. Nothing is committed: "
            "coalesce() to fewer partitions"
        )
    return value


def decoded(value: bytes, key: bytes) -> Publication:
    """Return the publication of a value in etcd.

    Raises:
        PublishError: the value is not a publication; the error names its key.
    """
    try:
        publication = decode_json(value, Publication)
        _ = publication.intents
    except ValueError as error:
        raise PublishError(
            f"what etcd keeps at {key.decode(errors='replace')} is no publication ({error}): whether it was published"
            " is unknown. Restore it from a backup of etcd, or delete it to publish again"
        ) from error
    return publication


async def load(etcd: EtcdClient, key: bytes) -> Publication | None:
    """Return a record; None if there is none."""
    found = await etcd.get_range(key)
    return decoded(found.kvs[0].value, key) if found.kvs else None


async def commit_once(etcd: EtcdClient, key: bytes, record: Publication) -> Publication:
    """Write a record unless there is one; return the one in etcd, which is what was published.

    Raises:
        EtcdUnavailableError: the outcome is unknown; call it again.
    """
    result = await etcd.txn((Compare.absent(key),), (Put(key, encoded(record)),), (Get(key),))
    return record if result.succeeded else decoded(result.gets[0][0].value, key)


async def commit_batch(etcd: EtcdClient, key: bytes, record: Publication) -> Publication | None:
    """Record a micro-batch after the one before it; return its committed record.

    Returns:
        The record; that of another driver if it committed the same batch; None if a later batch is recorded, whose
        driver acknowledged this one long ago.

    Raises:
        EtcdUnavailableError: the outcome is unknown; call it again.
    """
    while True:
        found = await etcd.get_range(key)
        latest = decoded(found.kvs[0].value, key) if found.kvs else None
        if latest is not None and latest.batch >= record.batch:
            return latest if latest.batch == record.batch else None
        revision = found.kvs[0].mod_revision if found.kvs else 0
        result = await etcd.txn(
            (Compare.mod_revision(key, revision),), (Put(key, encoded(record)),)
        )
        # Otherwise another driver of the query wrote in between: what it recorded decides.
        if result.succeeded:
            return record


async def forget(etcd: EtcdClient, key: bytes) -> None:
    """Delete a record that is no longer needed."""
    await etcd.delete(key)


async def prune(etcd: EtcdClient, root: str, *, retention_days: float) -> int:
    """Delete a root's records that are older than the retention; return their number."""
    before = time.time() - retention_days * _DAY_SECONDS
    pruned = 0
    for prefix in (publication_key(root, ""), query_key(root, "")):
        listed = await etcd.get_range(prefix, prefix_range_end(prefix))
        for kv in listed.kvs:
            if _committed_at(kv) < before:
                # Compared, because it may have been written again meanwhile.
                unchanged = Compare.mod_revision(kv.key, kv.mod_revision)
                result = await etcd.txn((unchanged,), (Delete(kv.key),))
                pruned += result.succeeded
    return pruned


def _committed_at(kv: KeyValue) -> float:
    """Return the time of a record's commit; an unreadable one never expires, so that its next reader reports it."""
    try:
        return decoded(kv.value, kv.key).committed_at
    except PublishError as error:
        _log.warning("publication.unreadable", cause=str(error))
        return math.inf
