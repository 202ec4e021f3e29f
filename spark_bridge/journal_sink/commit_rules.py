"""Decides whether a recorded commit is that of a given write, or of another one that shares its name.

A query's id is copied with its checkpoint, and a name of a publication may be used twice. So a record counts for a
write only if it is of the same target. A micro-batch that is recorded for the same target must be the same batch: its
rows are compared, because otherwise they would be left out in silence.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.commit_record import NO_BATCH, Publication, SinkTarget
from broadsheet.spark_bridge.journal_sink.row_content import RowContent


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryIdentity:
    """The identity of a query's commits."""

    query: str
    """Its id, which Spark keeps in the checkpoint."""
    target: SinkTarget
    checkpoint: str = ""
    """Its option `checkpointLocation`; empty if it was not given."""
    accepted_through: int = NO_BATCH
    """Number of the last batch that the caller declares committed; -1 if none."""


def is_of_target(record: Publication, target: SinkTarget) -> bool:
    """Return whether a query's record is of a target: of its selector, or of one of its journals."""
    if record.brokers and target.brokers and record.brokers != target.brokers:
        return False
    # By journals, too, because the option's text may change between two runs of a query.
    return _has_selector_of(record, target) or not record.attempts.keys().isdisjoint(
        target.journals
    )


def latest_record(records: Iterable[Publication], identity: QueryIdentity) -> Publication | None:
    """Return the latest record of a query's target; None if there is none."""
    own = (record for record in records if is_of_target(record, identity.target))
    return max(own, key=lambda record: record.batch, default=None)


def check_not_overtaken(record: Publication, identity: QueryIdentity, batch: int) -> None:
    """Refuse to take a batch for committed only because a later one is.

    Raises:
        PublishError: the record is of a later batch, which this run did not commit: a run commits in order.
    """
    if record.batch <= batch or batch <= identity.accepted_through:
        return
    raise PublishError(
        f"batch {batch} of query {identity.query}: batch {record.batch} is committed in {record.target_text} already, "
        f"by another run{_checkpoint_of(record)}. {_way_out(record, identity)}"
    )


def check_same_batch(record: Publication, identity: QueryIdentity, content: RowContent) -> None:
    """Refuse to finish a recorded batch instead of one that has other rows.

    Args:
        record: Of the batch with the same number.
        identity: The query's.
        content: Of the batch's rows as they are now.

    Raises:
        PublishError: the rows differ, or the record's journals are not all among the target's.
    """
    if record.batch <= identity.accepted_through:
        return
    name = f"batch {record.batch} of query {identity.query}"
    others = sorted(record.attempts.keys() - set(identity.target.journals))
    if others and not _has_selector_of(record, identity.target):
        raise PublishError(
            f"{name}: it is committed in {record.target_text}, and journals {', '.join(others)} are not among those "
            f"of {identity.target.text}. {_way_out(record, identity)}"
        )
    # Spark lets one run at a time use a checkpoint, and repeats a batch from its log there: rows that differ are
    # those of a query that is not deterministic, and the recorded ones count.
    one_checkpoint = record.checkpoint and record.checkpoint == identity.checkpoint
    unknown = not record.content
    digest, _, rows = record.content.partition(":")
    # Rows are told apart from messages where a message holds several.
    committed_rows = int(rows) if rows else record.messages
    if committed_rows == content.rows and (one_checkpoint or unknown or digest == content.text):
        return
    raise PublishError(
        f"{name}: it is committed in {record.target_text} by another run{_checkpoint_of(record)}, with "
        f"{committed_rows} rows; this run's {content.rows} rows are others. {_way_out(record, identity)}"
    )


def check_same_target(record: Publication, name: str, target: SinkTarget) -> None:
    """Refuse to take a publication for one of the same name that went elsewhere.

    Raises:
        PublishError: it was published to other journals, or through other brokers.
    """
    elsewhere = record.brokers and target.brokers and record.brokers != target.brokers
    # Without rows it has no journals, so only an equal selector, or an earlier version's record, can be this write's.
    within = (
        record.attempts.keys() <= set(target.journals) if record.attempts else not record.selector
    )
    if not elsewhere and (within or _has_selector_of(record, target)):
        return
    brokers = " of other brokers" if elsewhere else ""
    raise PublishError(
        f"publication {name}: a DataFrame is published under this name already, into {record.target_text}{brokers}; "
        f"nothing was published into {target.text}. Use another name, or another `root`"
    )


def _has_selector_of(record: Publication, target: SinkTarget) -> bool:
    return bool(record.selector) and record.selector == target.selector


def _checkpoint_of(record: Publication) -> str:
    return f" with checkpoint {record.checkpoint}" if record.checkpoint else ""


def _way_out(record: Publication, identity: QueryIdentity) -> str:
    return (
        "Nothing of this batch was published. If the checkpoint is a copy, give this query a `root` of its own, and "
        "it writes its rows. If it was restored and the committed batches hold its rows, set the option "
        f"acceptCommittedThrough to {max(record.batch, identity.accepted_through)}"
    )
