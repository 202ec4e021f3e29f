"""What is committed, in etcd: the one place that decides whether rows were published.

    {root}.publications/{name}      a DataFrame published under a name: written once, if it is absent
    {root}.queries/{query}          the latest micro-batch of a streaming query: replaced by the next one's, and by
                                    nothing else, so an older batch that turns up again is known for committed

A record goes when its time is over (`prune`): whoever comes then under its name publishes anew.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import structlog

from allocator.ops import Compare, Delete, Get, KeyValue, Put, prefix_range_end
from spark_bridge.errors import PublishError
from spark_bridge.journal_sink.record import Publication, decoded, encoded
from spark_bridge.keys import publication_key, query_key

if TYPE_CHECKING:
    from allocator.etcd.client import EtcdClient

_log = structlog.get_logger()

_DAY_SECONDS = 86_400.0


async def load(etcd: EtcdClient, key: bytes) -> Publication | None:
    """Return a record; None if there is none."""
    found = await etcd.get_range(key)
    return decoded(found.kvs[0].value, key) if found.kvs else None


async def commit_once(etcd: EtcdClient, key: bytes, record: Publication) -> Publication:
    """Write a record unless there is one, and return the one that is there then: it is what was published.

    Raises:
        EtcdUnavailableError: nobody knows; do it again.
    """
    result = await etcd.txn((Compare.absent(key),), (Put(key, encoded(record)),), (Get(key),))
    return record if result.succeeded else decoded(result.gets[0][0].value, key)


async def commit_batch(etcd: EtcdClient, key: bytes, record: Publication) -> Publication | None:
    """Let a micro-batch follow the one before it, and return what of it is committed.

    Returns:
        The record; that of another driver which committed the same batch; None if a later batch is there, whose
        driver has acknowledged this one long ago.

    Raises:
        EtcdUnavailableError: nobody knows; do it again.
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
        if result.succeeded:
            return record


async def forget(etcd: EtcdClient, key: bytes) -> None:
    """Delete a record that nobody will ask for."""
    await etcd.delete(key)


async def prune(etcd: EtcdClient, root: str, *, retention_days: float) -> int:
    """Delete the records of a root that are older than the retention, and return how many there were."""
    before = time.time() - retention_days * _DAY_SECONDS
    pruned = 0
    for prefix in (publication_key(root, ""), query_key(root, "")):
        listed = await etcd.get_range(prefix, prefix_range_end(prefix))
        for kv in listed.kvs:
            if _committed_at(kv) < before:
                # Not if it was written again meanwhile.
                unchanged = Compare.mod_revision(kv.key, kv.mod_revision)
                result = await etcd.txn((unchanged,), (Delete(kv.key),))
                pruned += result.succeeded
    return pruned


def _committed_at(kv: KeyValue) -> float:
    """Return when a record was committed; never, if that cannot be read: who wants that record decides about it."""
    try:
        return decoded(kv.value, kv.key).committed_at
    except PublishError as error:
        _log.warning("publication.unreadable", cause=str(error))
        return math.inf
