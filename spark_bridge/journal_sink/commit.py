"""The driver's part: make what tasks wrote a fact, then tell the readers.

    STARTED        tasks are done; nothing is visible
    RECORDED       etcd has the acknowledgements: from here on the rows are published, whoever has to finish it
    ACKNOWLEDGED   a journal has its acknowledgements, once for each journal
    FINISHED       every journal has

Killed before RECORDED, the rows were never there. Killed after it, whoever commits the same thing again finds the
record and appends *its* acknowledgements; readers that have them already take them for duplicates. All acknowledgements
of a journal are one append, so that no reader at its end sees some tasks' rows and not the others'.

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
"""How often a query prunes; also with its first batch, so that forgotten queries are made up for by new ones."""


class CommitStep(Enum):
    """How far a commit has come."""

    STARTED = "started"
    RECORDED = "recorded"
    ACKNOWLEDGED = "acknowledged"
    FINISHED = "finished"


StepObserver: TypeAlias = Callable[[CommitStep, int], None]
"""Is called after each step with the number of the batch, -1 if it is none."""


def observe_nothing(step: CommitStep, batch: int) -> None:
    """Take no notice."""
    del step, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTarget:
    """Where commits are remembered and acknowledged."""

    access: Access
    """Of the brokers."""
    etcd: EtcdConfig
    root: str
    retention_days: int | None
    """How long it is remembered what was committed; None prunes nothing."""
    on_step: StepObserver = observe_nothing


async def committed_publication(target: CommitTarget, name: str) -> Publication | None:
    """Return what is published under a name; None if nothing is."""
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
    """Publish a DataFrame under a name, or finish what was published under it before.

    Args:
        target: Where.
        name: The publication's.
        record: What tasks wrote.
        keep: Remember the name afterwards.

    Returns:
        What is published: `record`, unless there was another.

    Raises:
        PublishError: it is committed, but not acknowledged in every journal; the message says how to go on.
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
        if record.batch % _PRUNE_EVERY_BATCHES == 0:
            await _prune(etcd, target)
    target.on_step(CommitStep.FINISHED, record.batch)


async def finish_publication(target: CommitTarget, name: str) -> None:
    """Acknowledge what tasks found published under a name.

    Raises:
        PublishError: it is forgotten since, or not every journal could be acknowledged.
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
        PublishError: it is forgotten since.
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
    if latest.batch == batch:
        await acknowledge(target, latest)
    target.on_step(CommitStep.FINISHED, batch)


async def acknowledge(target: CommitTarget, record: Publication) -> None:
    """Append a publication's acknowledgements, each journal's at once; appended twice they do no harm."""
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
    """Append until an answer comes."""
    repeating = AsyncRetrying(
        retry=retry_if_exception_type(AppendOutcomeUnknownError), wait=wait_fixed(_RETRY_SECONDS)
    )
    await repeating(journals.append, journal, intent)
