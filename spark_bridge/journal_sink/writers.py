"""The sink's writers, which Spark pickles to tasks and calls on the driver to commit.

Tasks write uncommitted messages (`attempt.py`) and return acknowledgements, which `commit.py` commits. A task writes
nothing if its work is committed already, by a driver that was killed before Spark took note of the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from broadsheet.journals.errors import ContentTypeError
from broadsheet.runtime.interpreter import few_collections, freeze_imports
from broadsheet.spark_bridge.content.encoder import Encoder
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_sink.attempt import WritePlan, write_attempt
from broadsheet.spark_bridge.journal_sink.commit import (
    CommitTarget,
    StepObserver,
    commit_micro_batch,
    commit_publication,
    committed_batch,
    committed_publication,
    finish_micro_batch,
    finish_publication,
    observe_nothing,
    require_not_rolled_back,
)
from broadsheet.spark_bridge.journal_sink.commit_record import CommitAttempt, SinkTarget
from broadsheet.spark_bridge.journal_sink.options import WriteOptions
from broadsheet.spark_bridge.journal_sink.row_content import RowContent, content_of_rows
from broadsheet.spark_bridge.journal_sink.row_mapping import mapping_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from broadsheet.journals.message.division import DividedJournals
    from broadsheet.wire.journal_pb2 import LabelSet

_log = structlog.get_logger()

# Local properties that Spark sets in every task of a micro-batch.
_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


async def plan_write(
    options: WriteOptions, schema: StructType, *, takes_content: bool = False
) -> tuple[WritePlan, SinkTarget]:
    """Find the journals and choose the encoding of rows, the same for all tasks.

    Raises:
        OptionError: no journal matches, or their content types differ.
        PublishError: the rows do not fit them.
        EndpointError: no broker could be reached.
    """
    # Imported here, because gRPC may only be used after the fork that made this process.
    from broadsheet.journals.transport import PATIENCE_SECONDS
    from broadsheet.spark_bridge.brokers import RESTART_SECONDS
    from broadsheet.wire.labels import CONTENT_TYPE, value_of

    # A caller waits for a batch write, and may have misspelt the address; a query must outlast a broker's restart.
    patience_seconds = RESTART_SECONDS if takes_content else PATIENCE_SECONDS
    found = await _find_journals(options, patience_seconds=patience_seconds)
    plan = WritePlan(
        access=options.access,
        journals=found.journals,
        mapping=mapping_for(options, journal_count=len(found.journals), schema=schema),
        encoder=encoder_for(value_of(found.labels, CONTENT_TYPE), schema, options, found.labels),
        divided=found.divided,
        takes_content=takes_content,
    )
    return plan, found.target


@dataclass(frozen=True, slots=True)
class _Found:
    """The journals of a write."""

    journals: tuple[str, ...]
    """By name. Parts of a divided journal that is selected, too, are none of them, so keys keep their journals."""
    labels: LabelSet
    """Of the first, which agrees with the others in those that matter."""
    divided: DividedJournals
    target: SinkTarget


async def _find_journals(options: WriteOptions, *, patience_seconds: float) -> _Found:
    from broadsheet.journals.content.registry import registered
    from broadsheet.journals.message.division import is_divided
    from broadsheet.journals.topic import undivided_roots
    from broadsheet.spark_bridge.brokers import open_client
    from broadsheet.wire.labels import CONTENT_TYPE, value_of, values_of
    from broadsheet.wire.selector_text import format_selector, parse_selector

    selector = parse_selector(options.selector)
    async with open_client(options.access, patience_seconds=patience_seconds) as client:
        listed = await client.list(selector)
        client.divided.learn(found.spec for found in listed.journals)
        if any(is_divided(found.spec.labels) for found in listed.journals):
            await client.learn_divided()
    if not listed.journals:
        expected = (
            "a selector that matches journals; create them first, e.g. with shardctl journals apply"
        )
        raise OptionError("selector", expected, got=options.selector)
    specs = undivided_roots([found.spec for found in listed.journals])
    specs.sort(key=lambda spec: spec.name)
    by_type = {value_of(spec.labels, CONTENT_TYPE): spec.name for spec in specs}
    if len(by_type) > 1:
        examples = ", ".join(f"{name} has {kind or 'none'}" for kind, name in by_type.items())
        expected = f"journals of one content type; {examples}"
        raise OptionError("selector", expected, got=options.selector)
    content = registered(next(iter(by_type)))
    for label in () if content is None else content.labels:
        by_values = {tuple(values_of(spec.labels, label)): spec.name for spec in specs}
        if len(by_values) > 1:
            first, second, *_ = by_values.values()
            expected = f"journals of one label {label}; {first} and {second} differ"
            raise OptionError("selector", expected, got=options.selector)
    cluster_id = listed.header.etcd.cluster_id
    journals = tuple(spec.name for spec in specs)
    target = SinkTarget(
        selector=format_selector(selector),
        # Rows may be in the parts, too.
        journals=(*journals, *sorted(client.divided.below(journals))),
        brokers=f"{cluster_id:x}" if cluster_id else "",
    )
    return _Found(journals, specs[0].labels, client.divided, target)


@dataclass(frozen=True)
class AttemptMessage(WriterCommitMessage):
    """The message that a task returns to the driver."""

    attempt: CommitAttempt | None
    """None if its work was found committed, or if it failed."""
    content: RowContent = field(default_factory=RowContent)
    """Of the task's rows in a micro-batch that was found committed."""
    query: str = ""
    """For a micro-batch: the query's id, which lasts as long as its checkpoint."""
    batch: int = -1
    failure: str = ""
    """The reason why no attempt can write the rows. Returned to the driver, because Spark would retry a failed task:
    four times by default, without end in sessions that host members.
    """


class BatchJournalWriter(DataSourceArrowWriter):
    """Publishes a DataFrame."""

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        *,
        on_step: StepObserver = observe_nothing,
    ) -> None:
        """Find the journals; `on_step` is called in the driver's commit.

        Raises:
            OptionError: an option does not fit the rows or the journals.
            PublishError: a column does not fit the journals.
        """
        self._plan, journals = asyncio.run(plan_write(options, schema))
        self._target = _commit_target(options, journals, on_step)
        self._named = bool(options.publication)
        self._publication = options.publication or f"unnamed-{uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append rows, uncommitted, unless the publication is committed."""
        # A name that was made for this write alone cannot be committed yet.
        if self._named:
            try:
                committed = asyncio.run(committed_publication(self._target, self._publication))
            except PublishError as error:
                return AttemptMessage(None, failure=str(error))
            if committed is not None:
                return AttemptMessage(None)
        return _attempted(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the tasks' messages, or finish an earlier publication of the name."""
        given = _succeeded(messages)
        # A task found the publication committed, so the others' messages are of another attempt and stay
        # unacknowledged.
        if any(message.attempt is None for message in given):
            asyncio.run(finish_publication(self._target, self._publication))
            return
        attempts = list(_attempts(given))
        asyncio.run(require_not_rolled_back(self._target, attempts))
        record = self._target.record_of(attempts)
        asyncio.run(commit_publication(self._target, self._publication, record, keep=self._named))
        freeze_imports()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave the tasks' messages unacknowledged: no reader of committed messages ever sees them."""
        _log.warning(
            "publication.aborted",
            publication=self._publication,
            uncommitted_messages=_message_count(messages),
        )


class StreamJournalWriter(DataSourceStreamArrowWriter):
    """Publishes the micro-batches of a query. Spark creates one for each batch, and another to commit it."""

    def __init__(
        self,
        options: WriteOptions,
        schema: StructType,
        *,
        on_step: StepObserver = observe_nothing,
    ) -> None:
        """Find the journals; `on_step` is called in the driver's commit.

        Raises:
            OptionError: an option does not fit the rows or the journals.
            PublishError: a column does not fit the journals.
        """
        if options.publication:
            expected = "nothing: the batches of a stream are known by its checkpoint"
            raise OptionError("publication", expected, got=options.publication)
        self._plan, journals = asyncio.run(plan_write(options, schema, takes_content=True))
        self._target = _commit_target(options, journals, on_step)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Append rows, uncommitted, unless the micro-batch is committed."""
        query, batch = _micro_batch()
        try:
            committed = asyncio.run(committed_batch(self._target, query, batch))
        except PublishError as error:
            return AttemptMessage(None, query=query, batch=batch, failure=str(error))
        if committed is not None:
            # The rows are read only to be compared with the committed ones.
            content = sum(map(content_of_rows, iterator), RowContent())
            return AttemptMessage(None, content, query, batch)
        return _attempted(iterator, self._plan, query=query, batch=batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the tasks' messages, or finish the micro-batch if it is committed."""
        given = _succeeded(messages)
        attempts = list(_attempts(given))
        content = sum(((message.attempt or message).content for message in given), RowContent())
        if len(attempts) < len(given):
            asyncio.run(finish_micro_batch(self._target, given[0].query, batchId, content))
        # An empty batch records nothing; repeating it does no harm.
        elif any(attempt.journals for attempt in attempts):
            asyncio.run(require_not_rolled_back(self._target, attempts))
            record = self._target.record_of(attempts, batch=batchId)
            asyncio.run(commit_micro_batch(self._target, given[0].query, record, content))
        freeze_imports()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave the tasks' messages unacknowledged; the restarted query writes the batch again."""
        _log.warning(
            "micro_batch.aborted", batch=batchId, uncommitted_messages=_message_count(messages)
        )


def _commit_target(
    options: WriteOptions, journals: SinkTarget, on_step: StepObserver
) -> CommitTarget:
    return CommitTarget(
        access=options.access,
        etcd=options.etcd,
        root=options.root,
        journals=journals,
        retention_days=options.retention_days,
        checkpoint=options.checkpoint,
        accepted_through=options.accepted_through,
        on_step=on_step,
    )


def _micro_batch() -> tuple[str, int]:
    """Return this task's query and batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_PROPERTY) if context else None
    batch = context.getLocalProperty(_BATCH_PROPERTY) if context else None
    if not query or batch is None:
        raise PublishError(
            "the task does not know its query and batch; the journal sink needs micro-batches"
        )
    return query, int(batch)


def _attempted(
    batches: Iterator[pa.RecordBatch], plan: WritePlan, *, query: str = "", batch: int = -1
) -> AttemptMessage:
    try:
        with few_collections():  # Spark's Python worker runs nothing else meanwhile.
            return AttemptMessage(write_attempt(batches, plan), query=query, batch=batch)
    except (PublishError, OptionError) as error:
        return AttemptMessage(None, query=query, batch=batch, failure=str(error))
    finally:
        freeze_imports()


def _succeeded(messages: Sequence[WriterCommitMessage | None]) -> list[AttemptMessage]:
    """Return the messages of all tasks.

    Raises:
        PublishError: rows of a task cannot be written.
    """
    given = _given(messages)
    for message in given:
        if message.failure:
            raise PublishError(f"{message.failure}. Nothing was published")
    return given


def _given(messages: Sequence[WriterCommitMessage | None]) -> list[AttemptMessage]:
    return [message for message in messages if isinstance(message, AttemptMessage)]


def _attempts(messages: Sequence[AttemptMessage]) -> Iterator[CommitAttempt]:
    return (message.attempt for message in messages if message.attempt is not None)


def _message_count(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(attempt.messages for attempt in _attempts(_given(messages)))


def encoder_for(
    content_type: str, schema: StructType, options: WriteOptions, labels: LabelSet | None = None
) -> Encoder:
    """Return the encoder for journals of a content type, and of labels on which their encoding depends.

    Raises:
        OptionError: the content type has no encoder, or needs a label.
        PublishError: the rows do not fit it.
    """
    from broadsheet.journals.content.registry import content_types
    from broadsheet.spark_bridge.content.registry import spark_content_of
    from broadsheet.wire.journal_pb2 import LabelSet as Labels

    try:
        content = spark_content_of(content_type)
    except ContentTypeError as error:
        raise OptionError(
            "selector",
            f"journals labelled content-type with one of {', '.join(content_types())}",
            got=f"{options.selector}, of content type {content_type or 'none'}",
        ) from error
    return content.encoder(schema, options, Labels() if labels is None else labels)
