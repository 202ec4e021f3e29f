"""Records of commits in etcd, which alone decide whether rows were published.

    {root}.publications/{name}      a DataFrame published under a name: written once, if it is absent
    {root}.queries/{query}/{target} the latest micro-batch of a streaming query in one target: replaced by the next
                                    one's, and by nothing else
    {root}.queries/{query}          the same as earlier versions wrote it; it is read, and pruned

A record carries the time for which it is kept, and is pruned after it (`prune`): after that, a publication of its name
publishes again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog
from xxhash import xxh3_64_hexdigest

from broadsheet.allocator.ops import Compare, Delete, Get, KeyValue, Put, prefix_range_end
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.commit_record import (
    RETENTION_DAYS,
    Publication,
    SinkTarget,
    decoded,
    encoded,
)
from broadsheet.spark_bridge.journal_sink.commit_rules import (
    QueryIdentity,
    check_not_overtaken,
    is_of_target,
    latest_record,
)
from broadsheet.spark_bridge.keys import (
    publication_key,
    queries_prefix,
    query_key,
    query_records_range,
)

if TYPE_CHECKING:
    from broadsheet.allocator.etcd.client import EtcdClient

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Stored:
    key: bytes
    revision: int
    record: Publication


async def load(etcd: EtcdClient, key: bytes) -> Publication | None:
    """Return a record; None if there is none."""
    found = await etcd.get_range(key)
    return decoded(found.kvs[0].value, key) if found.kvs else None


async def load_batch(
    etcd: EtcdClient, root: str, identity: QueryIdentity, batch: int
) -> Publication | None:
    """Return a micro-batch's record; None if the batch is not committed.

    Raises:
        PublishError: a later batch is committed.
    """
    stored = await _load_query(etcd, root, identity.query)
    latest = latest_record((found.record for found in stored), identity)
    if latest is None or latest.batch < batch:
        return None
    check_not_overtaken(latest, identity, batch)
    return latest


async def commit_once(etcd: EtcdClient, key: bytes, record: Publication) -> Publication:
    """Write a record unless there is one; return the one in etcd, which is what was published.

    A record that is there is kept as long as the longest of its writers was promised.

    Raises:
        EtcdUnavailableError: the outcome is unknown; call it again.
    """
    while True:
        result = await etcd.txn((Compare.absent(key),), (Put(key, encoded(record)),), (Get(key),))
        if result.succeeded:
            return record
        found = result.gets[0][0]
        published = decoded(found.value, key)
        if record.retention_days <= (published.retention_days or RETENTION_DAYS):
            return published
        longer = msgspec.structs.replace(published, retention_days=record.retention_days)
        unchanged = Compare.mod_revision(key, found.mod_revision)
        result = await etcd.txn((unchanged,), (Put(key, encoded(longer)),))
        if result.succeeded:
            return longer


async def commit_batch(
    etcd: EtcdClient, root: str, identity: QueryIdentity, record: Publication
) -> Publication:
    """Record a micro-batch after the one before it; return its committed record.

    Returns:
        The record; that of another driver if it committed the batch of this number.

    Raises:
        PublishError: a later batch is recorded.
        EtcdUnavailableError: the outcome is unknown; call it again.
    """
    key = query_key(root, identity.query, target_digest(identity.target))
    while True:
        stored = await _load_query(etcd, root, identity.query)
        latest = latest_record((found.record for found in stored), identity)
        if latest is not None and latest.batch >= record.batch:
            check_not_overtaken(latest, identity, record.batch)
            return latest
        revisions = {key: 0} | {
            found.key: found.revision
            for found in stored
            if is_of_target(found.record, identity.target)
        }
        unchanged = tuple(Compare.mod_revision(*each) for each in revisions.items())
        result = await etcd.txn(unchanged, (Put(key, encoded(record)),))
        # Otherwise another driver of the query wrote in between: what it recorded decides.
        if result.succeeded:
            return record


async def forget(etcd: EtcdClient, key: bytes) -> None:
    """Delete a record that is no longer needed."""
    await etcd.delete(key)


async def prune(etcd: EtcdClient, root: str, *, retention_days: float) -> int:
    """Delete a root's records that are older than what their writers were promised; return their number.

    Args:
        etcd: Has the records.
        root: Beside which they are.
        retention_days: Applies to records of earlier versions, which do not carry theirs, if it is more than 30.
    """
    now = time.time()
    pruned = 0
    for prefix in (publication_key(root, ""), queries_prefix(root)):
        listed = await etcd.get_range(prefix, prefix_range_end(prefix))
        for kv in listed.kvs:
            if _is_expired(kv, now, retention_days=retention_days):
                # Compared, because it may have been written again meanwhile.
                unchanged = Compare.mod_revision(kv.key, kv.mod_revision)
                result = await etcd.txn((unchanged,), (Delete(kv.key),))
                pruned += result.succeeded
    return pruned


def target_digest(target: SinkTarget) -> str:
    """Return the part of a key that stands for a target, 16 hexadecimal digits."""
    return xxh3_64_hexdigest(f"{target.brokers}\n{target.selector}".encode())


async def _load_query(etcd: EtcdClient, root: str, query: str) -> list[_Stored]:
    """Return a query's records in all of its targets."""
    found = await etcd.get_range(*query_records_range(root, query))
    return [_Stored(kv.key, kv.mod_revision, decoded(kv.value, kv.key)) for kv in found.kvs]


def _is_expired(kv: KeyValue, now: float, *, retention_days: float) -> bool:
    """Return whether a record may be removed; an unreadable one never, so that its next reader reports it."""
    try:
        return decoded(kv.value, kv.key).is_expired(now, retention_days=retention_days)
    except PublishError as error:
        _log.warning("publication.unreadable", cause=str(error))
        return False
