"""Commits what tasks wrote, on the driver: record it in etcd, then append acknowledgements.

    STARTED        tasks are done; nothing is visible
    RECORDED       etcd has the acknowledgements: from here on the rows are published, whichever driver finishes it
    ACKNOWLEDGED   a journal has its acknowledgements, once for each journal
    FINISHED       every journal has

If the driver is killed before RECORDED, nothing was published. If it is killed after it, the next driver that commits
the same thing finds the record and appends *its* acknowledgements; readers that have them already discard the
duplicates. All acknowledgements of a journal are one append, so that a reader at its end sees the rows of all tasks or
of none.

Source: gazette/core message/publisher.go (BuildAckIntents: intents are stored durably before they are written).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from broadsheet.consumer.errors import AppendOutcomeUnknownError, ConsumerError
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink import commit_store
from broadsheet.spark_bridge.journal_sink.commit_store import Publication
from broadsheet.spark_bridge.keys import publication_key, query_key

if TYPE_CHECKING:
    from broadsheet.allocator.etcd.client import EtcdClient
    from broadsheet.allocator.etcd.config import EtcdConfig
    from broadsheet.consumer.journal.client import JournalClient
    from broadsheet.spark_bridge.journal_source.options import Access

_log = structlog.get_logger()

ACKNOWLEDGE_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_PRUNE_EVERY_BATCHES = 1_000
"""Batches between two prunings by a query. It also prunes with its first batch, so that new queries clean up after
abandoned ones.
"""


class CommitStep(Enum):
    """The steps of a commit."""

    STARTED = "started"
    RECORDED = "recorded"
    ACKNOWLEDGED = "acknowledged"
    FINISHED = "finished"


StepObserver: TypeAlias = Callable[[CommitStep, int], None]
"""Called after each step with the number of the micro-batch; -1 for a batch write."""


def observe_nothing(step: CommitStep, batch: int) -> None:
    """Ignore the step."""
    del step, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTarget:
    """The etcd that records commits, and the brokers that take acknowledgements."""

    access: Access
    """Of the brokers."""
    etcd: EtcdConfig
    root: str
    retention_days: int | None
    """Retention of records of commits; None prunes nothing."""
    on_step: StepObserver = observe_nothing


async def committed_publication(target: CommitTarget, name: str) -> Publication | None:
    """Return the publication of a name; None if there is none."""
    from broadsheet.allocator.etcd.client import EtcdClient

    async with EtcdClient(target.etcd) as etcd:
        return await commit_store.load(etcd, publication_key(target.root, name))


async def committed_batch(target: CommitTarget, query: str) -> int:
    """Return the number of a query's latest committed micro-batch; -1 if there is none."""
    from broadsheet.allocator.etcd.client import EtcdClient

    async with EtcdClient(target.etcd) as etcd:
        latest = await commit_store.load(etcd, query_key(target.root, query))
    return -1 if latest is None else latest.batch


async def commit_publication(
    target: CommitTarget, name: str, record: Publication, *, keep: bool = True
) -> Publication:
    """Publish a DataFrame under a name, or finish an earlier publication of that name.

    Args:
        target: Records and acknowledges it.
        name: The publication's.
        record: The attempts that tasks wrote.
        keep: Remember the name afterwards.

    Returns:
        The publication of that name: `record`, unless there was an earlier one.

    Raises:
        PublishError: it is committed, but not acknowledged in every journal; the message says how to finish it.
        EtcdUnavailableError: etcd did not answer; commit again under the same name.
    """
    from broadsheet.allocator.etcd.client import EtcdClient

    target.on_step(CommitStep.STARTED, record.batch)
    key = publication_key(target.root, name)
    async with EtcdClient(target.etcd) as etcd:
        durable = await commit_store.commit_once(etcd, key, record)
        target.on_step(CommitStep.RECORDED, record.batch)
        try:
            await acknowledge(target, durable)
        except (ConsumerError, TimeoutError) as error:
            raise PublishError(
                f"publication {name} is committed, but not every journal has its acknowledgement yet: {error!r}. "
                "Write again with this option `publication` to finish it; nothing is published twice"
            ) from error
        # The name was made for this write alone, so nothing will ask for it again.
        if not keep:
            await commit_store.forget(etcd, key)
        await _prune(etcd, target)
    _log.info("publication.committed", publication=name, messages=durable.messages)
    target.on_step(CommitStep.FINISHED, record.batch)
    return durable


async def commit_micro_batch(target: CommitTarget, query: str, record: Publication) -> None:
    """Publish a micro-batch of a query, or finish it if it was committed before.

    Raises:
        ConsumerError: a broker refused; the restarted query finishes it.
        EtcdUnavailableError: etcd did not answer; the restarted query commits again.
    """
    from broadsheet.allocator.etcd.client import EtcdClient

    target.on_step(CommitStep.STARTED, record.batch)
    async with EtcdClient(target.etcd) as etcd:
        durable = await commit_store.commit_batch(etcd, query_key(target.root, query), record)
        target.on_step(CommitStep.RECORDED, record.batch)
        if durable is not None:
            await acknowledge(target, durable)
        # Pruning reads every record, so it is not done with each batch.
        if record.batch % _PRUNE_EVERY_BATCHES == 0:
            await _prune(etcd, target)
    target.on_step(CommitStep.FINISHED, record.batch)


async def finish_publication(target: CommitTarget, name: str) -> None:
    """Acknowledge a publication that tasks found under its name.

    Raises:
        PublishError: its record was pruned since, or not every journal could be acknowledged.
    """
    record = await committed_publication(target, name)
    if record is None:
        raise PublishError(
            f"publication {name}: it was committed when the tasks began, and is forgotten now; nothing was "
            "published. Raise retentionDays, or use another name"
        )
    await commit_publication(target, name, record)


async def finish_micro_batch(target: CommitTarget, query: str, batch: int) -> None:
    """Acknowledge a micro-batch that tasks found committed.

    Raises:
        PublishError: its record was pruned since.
    """
    from broadsheet.allocator.etcd.client import EtcdClient

    target.on_step(CommitStep.STARTED, batch)
    async with EtcdClient(target.etcd) as etcd:
        latest = await commit_store.load(etcd, query_key(target.root, query))
    if latest is None or latest.batch < batch:
        raise PublishError(
            f"batch {batch} of query {query}: it was committed when its tasks began, and is forgotten now; "
            "restart the query to write it again, and raise retentionDays"
        )
    target.on_step(CommitStep.RECORDED, batch)
    # A later batch is recorded only after this one was acknowledged.
    if latest.batch == batch:
        await acknowledge(target, latest)
    target.on_step(CommitStep.FINISHED, batch)


async def acknowledge(target: CommitTarget, record: Publication) -> None:
    """Append a publication's acknowledgements, one append a journal; repeated ones do no harm."""
    from broadsheet.spark_bridge.brokers import open_client

    async with (
        asyncio.timeout(ACKNOWLEDGE_TIMEOUT_SECONDS),
        open_client(target.access) as journals,
    ):
        for journal, intent in record.intents.items():
            await _append_again(journals, journal, intent)
            target.on_step(CommitStep.ACKNOWLEDGED, record.batch)


async def _prune(etcd: EtcdClient, target: CommitTarget) -> None:
    if target.retention_days is None:
        return
    pruned = await commit_store.prune(etcd, target.root, retention_days=target.retention_days)
    if pruned:
        _log.info("publications.pruned", root=target.root, records=pruned)


async def _append_again(journals: JournalClient, journal: str, intent: bytes) -> None:
    """Repeat an append until the broker answers."""
    # Repeated although the append may have landed, because readers discard a second acknowledgement.
    repeating = AsyncRetrying(
        retry=retry_if_exception_type(AppendOutcomeUnknownError), wait=wait_fixed(_RETRY_SECONDS)
    )
    await repeating(journals.append, journal, intent)
