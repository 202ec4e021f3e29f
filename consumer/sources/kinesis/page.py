"""A page: what one reading of a shard brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from consumer.sources.kinesis.lineage import StreamShard
from consumer.sources.kinesis.records import KinesisMetadata, StreamRecord, user_records

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Page:
    """Some records of a shard; may be none."""

    records: tuple[StreamRecord, ...]
    """As their producers meant them."""
    first: str = ""
    """Number of the first record of the stream; empty: there was none."""
    last: str = ""
    """Number of its last."""
    behind_ms: int | None = None
    """How old the end of the page is, compared with the end of the shard."""
    ended: bool = False
    """No page will follow: the shard is closed, and was read to its end."""


def page_of(shard: StreamShard, records: list[Any], *, behind_ms: int | None, ended: bool) -> Page:
    """Return records as boto3 gives them as a page, aggregates taken apart."""
    found: list[StreamRecord] = []
    for record in records:
        metadata = KinesisMetadata(
            shard_id=shard.id,
            sequence_number=record["SequenceNumber"],
            partition_key=record["PartitionKey"],
            arrived_at=record.get("ApproximateArrivalTimestamp"),
        )
        parts = user_records(metadata, record["Data"], shard.hashes)
        if not parts:
            _log.warning(
                "kinesis.misplaced_aggregate", shard=shard.id, sequence=record["SequenceNumber"]
            )
        found += parts
    return Page(
        tuple(found),
        first=records[0]["SequenceNumber"] if records else "",
        last=records[-1]["SequenceNumber"] if records else "",
        behind_ms=behind_ms,
        ended=ended,
    )
