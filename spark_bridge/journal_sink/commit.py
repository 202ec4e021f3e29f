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
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalNotFoundError,
    RegisterMismatchError,
)
from broadsheet.journals.message.rollback import not_rolled_back
from broadsheet.runtime.errors import ServiceError
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink import commit_store
from broadsheet.spark_bridge.journal_sink.commit_record import (
    NO_BATCH,
    RETENTION_DAYS,
    CommitAttempt,
    Publication,
    SinkTarget,
    publication_of,
)
from broadsheet.spark_bridge.journal_sink.commit_rules import (
    QueryIdentity,
    check_same_batch,
    check_same_target,
)
from broadsheet.spark_bridge.journal_sink.row_content import RowContent
from broadsheet.spark_bridge.keys import publication_key
from broadsheet.wire.journal_pb2 import LabelSelector, LabelSet
from broadsheet.wire.labels import selector

if TYPE_CHECKING:
    from broadsheet.allocator.etcd.client import EtcdClient
    from broadsheet.allocator.etcd.config import EtcdConfig
    from broadsheet.journals.client import JournalClient
    from broadsheet.spark_bridge.journal_source.options import Access

_log = structlog.get_logger()

ACKNOWLEDGE_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_SILENT_SECONDS = 30.0
"""Age of an attempt above which an operator may have taken it for dead: rollbacks are refused for twice as long."""
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
    journals: SinkTarget
    retention_days: int = RETENTION_DAYS
    """Time for which this writer's records are kept after their commit."""
    checkpoint: str = ""
    """The query's option `checkpointLocation`; empty if it was not given."""
    accepted_through: int = NO_BATCH
    """Number of the last micro-batch that the caller declares committed; -1 if none."""
    on_step: StepObserver = observe_nothing

    def record_of(self, attempts: Iterable[CommitAttempt], *, batch: int = NO_BATCH) -> Publication:
        """Return the record that commits the attempts in this target."""
        return msgspec.structs.replace(
            publication_of(attempts, committed_at=time.time(), batch=batch),
            retention_days=float(self.retention_days),
            selector=self.journals.selector,
            brokers=self.journals.brokers,
            checkpoint=self.checkpoint,
        )

    def identity(self, query: str) -> QueryIdentity:
        """Return the identity of a query that writes into this target."""
        return QueryIdentity(
            query=query,
            target=self.journals,
            checkpoint=self.checkpoint,
            accepted_through=self.accepted_through,
        )


async def committed_publication(target: CommitTarget, name: str) -> Publication | None:
    """Return the publication of a name; None if there is none.

    Raises:
        PublishError: the name was published to another target.
    """
    from broadsheet.allocator.etcd.client import EtcdClient

    async with EtcdClient(target.etcd) as etcd:
        found = await commit_store.load(etcd, publication_key(target.root, name))
    if found is not None:
        check_same_target(found, name, target.journals)
    return found


async def committed_batch(target: CommitTarget, query: str, batch: int) -> Publication | None:
    """Return a micro-batch's record; None if the batch is not committed.

    Raises:
        PublishError: a later batch of the query is committed.
    """
    from broadsheet.allocator.etcd.client import EtcdClient

    async with EtcdClient(target.etcd) as etcd:
        return await commit_store.load_batch(etcd, target.root, target.identity(query), batch)


async def require_not_rolled_back(target: CommitTarget, attempts: Iterable[CommitAttempt]) -> None:
    """Refuse to record attempts whose rows an operator has rolled back: only a part could be committed.

    Raises:
        PublishError: rows were rolled back in a journal.
        ServiceError: a broker refused.
    """
    from broadsheet.runtime.task_group import TaskGroup
    from broadsheet.spark_bridge.brokers import open_client

    producers: dict[str, list[int]] = {}
    for attempt in attempts:
        if attempt.ended_at < time.time() - _SILENT_SECONDS:
            for journal in attempt.journals:
                producers.setdefault(journal, []).append(attempt.producer)
    if not producers:
        return
    try:
        async with open_client(target.access) as journals, TaskGroup() as tasks:
            for journal, given in producers.items():
                # An append of nothing tells whether its registers match.
                append = journals.append(journal, b"", check_registers=_not_rolled_back(given))
                tasks.start_soon(append, name=f"check {journal}")
    except RegisterMismatchError as error:
        raise PublishError(
            f"journal {error.journal}: an operator has rolled rows back there before they were committed (`shardctl "
            "journals roll-back`). Nothing was published: write them again"
        ) from error


async def commit_publication(
    target: CommitTarget, name: str, record: Publication, *, keep: bool = True
) -> Publication:
    """Publish a DataFrame under a name, or finish an earlier publication of that name.

    Args:
        target: Records and acknowledges it.
        name: The publication's.
        record: Of the attempts that tasks wrote.
        keep: Remember the name afterwards.

    Returns:
        The publication of that name: `record`, unless there was an earlier one.

    Raises:
        PublishError: it is committed, but not acknowledged in every journal, and the message says how to finish it;
            or the name was published to another target.
        EtcdUnavailableError: etcd did not answer; commit again under the same name.
    """
    from broadsheet.allocator.etcd.client import EtcdClient

    target.on_step(CommitStep.STARTED, record.batch)
    key = publication_key(target.root, name)
    async with EtcdClient(target.etcd) as etcd:
        durable = await commit_store.commit_once(etcd, key, record)
        check_same_target(durable, name, target.journals)
        target.on_step(CommitStep.RECORDED, record.batch)
        try:
            await acknowledge(target, durable)
        except (ServiceError, TimeoutError) as error:
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


async def commit_micro_batch(
    target: CommitTarget, query: str, record: Publication, content: RowContent
) -> None:
    """Publish a micro-batch of a query, or finish it if it was committed before.

    Raises:
        PublishError: another run of the query committed other rows under the number, or a later batch.
        ServiceError: a broker refused; the restarted query finishes it.
        EtcdUnavailableError: etcd did not answer; the restarted query commits again.
    """
    from broadsheet.allocator.etcd.client import EtcdClient

    target.on_step(CommitStep.STARTED, record.batch)
    identity = target.identity(query)
    async with EtcdClient(target.etcd) as etcd:
        durable = await commit_store.commit_batch(etcd, target.root, identity, record)
        await _finish_batch(target, identity, durable, content=content, batch=record.batch)
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


async def finish_micro_batch(
    target: CommitTarget, query: str, batch: int, content: RowContent
) -> None:
    """Acknowledge a micro-batch that tasks found committed.

    Args:
        target: Has its record.
        query: The query's id.
        batch: Number of the batch.
        content: Of the rows that its tasks had this time.

    Raises:
        PublishError: its record was pruned since; or another run of the query committed other rows under the number.
    """
    target.on_step(CommitStep.STARTED, batch)
    record = await committed_batch(target, query, batch)
    if record is None:
        raise PublishError(
            f"batch {batch} of query {query}: it was committed when its tasks began, and is forgotten now; "
            "restart the query to write it again, and raise retentionDays"
        )
    await _finish_batch(target, target.identity(query), record, content=content, batch=batch)
    target.on_step(CommitStep.FINISHED, batch)


async def _finish_batch(
    target: CommitTarget,
    identity: QueryIdentity,
    record: Publication,
    *,
    content: RowContent,
    batch: int,
) -> None:
    """Acknowledge a recorded batch, unless a later one is recorded, before which it was acknowledged."""
    if record.batch == batch:
        check_same_batch(record, identity, content)
    target.on_step(CommitStep.RECORDED, batch)
    if record.batch == batch:
        await acknowledge(target, record)


async def acknowledge(target: CommitTarget, record: Publication) -> None:
    """Append a publication's acknowledgements, one append a journal; repeated ones do no harm.

    Raises:
        PublishError: a journal does not exist any more; or an operator has rolled rows back there, when the other
            journals have theirs.
        ServiceError: a broker refused.
        TimeoutError: the brokers did not take them in time.
    """
    from broadsheet.spark_bridge.brokers import open_client

    rolled_back: RegisterMismatchError | None = None
    async with (
        asyncio.timeout(ACKNOWLEDGE_TIMEOUT_SECONDS),
        open_client(target.access) as journals,
    ):
        for journal, intent in record.intents.items():
            try:
                await _append_again(journals, journal, intent, record.producers_in(journal))
            except RegisterMismatchError as error:
                rolled_back = rolled_back or error
                continue
            except JournalNotFoundError as error:
                # Not taken for done: a journal that is restored later would hold the rows, and not their commit.
                raise PublishError(
                    f"journal {journal} does not exist, and holds rows that are committed, but not acknowledged "
                    "there yet. Restore it, or apply it again, empty if its rows are not wanted; then write again"
                ) from error
            target.on_step(CommitStep.ACKNOWLEDGED, record.batch)
    if rolled_back is not None:
        _require_accepted(target, record, rolled_back)


def _require_accepted(
    target: CommitTarget, record: Publication, error: RegisterMismatchError
) -> None:
    """Refuse to go on without rows that were rolled back when they were recorded, unless the caller declares it."""
    if NO_BATCH < record.batch <= target.accepted_through:
        _log.warning("micro_batch.rolled_back", batch=record.batch, journal=error.journal)
        return
    way_out = (
        f" To go on without them, set the option acceptCommittedThrough to {record.batch}."
        if record.batch > NO_BATCH
        else ""
    )
    raise PublishError(
        f"journal {error.journal} holds rows that are committed, and that an operator has rolled back there "
        f"(`shardctl journals roll-back`): its readers drop them.{way_out} {error}"
    ) from error


async def _prune(etcd: EtcdClient, target: CommitTarget) -> None:
    pruned = await commit_store.prune(etcd, target.root, retention_days=target.retention_days)
    if pruned:
        _log.info("publications.pruned", root=target.root, records=pruned)


async def _append_again(
    journals: JournalClient, journal: str, intent: bytes, producers: Iterable[int]
) -> None:
    """Repeat an append until the broker answers.

    Raises:
        RegisterMismatchError: an operator has rolled back what one of the producers wrote to the journal.
    """
    check = _not_rolled_back(producers)
    # Repeated although the append may have landed, because readers discard a second acknowledgement.
    repeating = AsyncRetrying(
        retry=retry_if_exception_type(AppendOutcomeUnknownError), wait=wait_fixed(_RETRY_SECONDS)
    )
    await repeating(journals.append, journal, intent, check_registers=check)


def _not_rolled_back(producers: Iterable[int]) -> LabelSelector | None:
    """Return what registers must match if nothing of the producers was rolled back; None: there are none."""
    names = [label for each in producers for label in not_rolled_back(each).labels]
    if not names:
        return None
    return selector(exclude=LabelSet(labels=sorted(names, key=lambda label: label.name)))
