"""The logs of a query's checkpoint: the last batch that it committed, its times, and the positions of its sources.

    CHECKPOINT/offsets/N     v1 | JSON: watermark, time | a line a source: where batch N ends, or `-`
    CHECKPOINT/commits/N     v1 | JSON: watermark of batch N + 1

Source: Spark's OffsetSeqLog.scala, OffsetSeq.scala and CommitLog.scala.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broadsheet.journals.message.uuid import PRODUCER_BYTES
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.formats import LaterFormatError
from broadsheet.spark_bridge.journal_source.journal_state import JournalState
from broadsheet.spark_bridge.journal_source.offsets import StreamOffset, parse_offset
from broadsheet.wire.shard_pb2 import Checkpoint

_VERSION: Final = "v1"
_NOTHING: Final = "-"
_SHOWN_MAX: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """The last batch that a query committed."""

    number: int
    batch_ms: int
    """Its time, epoch milliseconds."""
    late_ms: int
    """Its watermark, by which the next batch judges rows."""
    watermark_ms: int
    """Watermark of the next batch."""
    positions: Mapping[str, bytes]
    """By journal, a `Checkpoint.Source`: where the query goes on to read."""
    told: Sequence[str]
    """Positions in other sources, for people."""


def last_committed(names: Collection[str], wanted: int | None) -> int:
    """Return the batch to take over.

    Args:
        names: Of the files in `commits`.
        wanted: The batch that was asked for; None: the last one.

    Raises:
        ValidationError: it is not committed, or none is.
    """
    numbers = sorted(int(name) for name in names if name.isdecimal())
    if not numbers:
        raise ValidationError(
            "checkpoint",
            "expected the checkpoint of a query that has committed a batch, found none",
        )
    if wanted is not None and wanted not in numbers:
        raise ValidationError(
            "batch_id",
            f"expected a committed batch from {numbers[0]} to {numbers[-1]}, got {wanted}",
        )
    return numbers[-1] if wanted is None else wanted


def committed_batch(number: int, offsets: str, commit: str) -> CommittedBatch:
    """Return a batch as the logs have it.

    Args:
        number: Of the batch.
        offsets: Content of its file in `offsets`.
        commit: Content of its file in `commits`.

    Raises:
        ValidationError: they are no such files, or of a version that is not known.
    """
    times, *sources = _lines(f"offsets/{number}", offsets)
    head = _document(f"offsets/{number}", times)
    positions: dict[str, bytes] = {}
    told: list[str] = []
    for place, text in enumerate(sources):
        if text == _NOTHING:
            continue
        journals = _of_journals(text)
        if journals is None:
            told.append(f"source {place}: {_told(text)}")
        else:
            positions |= {name: each.SerializeToString() for name, each in journals.items()}
    watermark = int(head.get("batchWatermarkMs", 0))
    following = [
        _document(f"commits/{number}", line) for line in _lines(f"commits/{number}", commit)[:1]
    ]
    next_watermark = max(
        (int(each.get("nextBatchWatermarkMs", 0)) for each in following), default=0
    )
    return CommittedBatch(
        number=number,
        batch_ms=int(head.get("batchTimestampMs", 0)),
        late_ms=watermark,
        watermark_ms=max(watermark, next_watermark),
        positions=positions,
        told=told,
    )


def _lines(name: str, content: str) -> list[str]:
    version, *lines = content.splitlines() or [""]
    if version != _VERSION or not lines:
        raise ValidationError(
            "checkpoint",
            f"{name}: expected a log of version {_VERSION} with lines, got {content!r:.80}",
        )
    return lines


def _document(name: str, line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValidationError("checkpoint", f"{name}: expected JSON, got {line!r:.80}") from error
    if not isinstance(found, dict):
        raise ValidationError("checkpoint", f"{name}: expected a JSON object, got {line!r:.80}")
    return found


def _of_journals(text: str) -> Mapping[str, Checkpoint.Source] | None:
    """Return the positions of an offset of journals; None: it is another source's."""
    try:
        value = json.loads(text)
        offset = parse_offset(value)
    except LaterFormatError as error:
        # Of journals, and its positions must not be left out.
        raise ValidationError("checkpoint", str(error)) from error
    except (ValueError, RecursionError):
        return None
    if not isinstance(offset, StreamOffset):
        # Nothing was read yet; or it is of a topic of Kafka of that name.
        return {} if isinstance(value["start"], str) else None
    return {name: _position(state, offset, name) for name, state in offset.journals.items()}


def _position(state: JournalState, offset: StreamOffset, name: str) -> Checkpoint.Source:
    position = Checkpoint.Source(read_through=state.offset)
    for producer, known in sorted(state.producers.items()):
        entry = position.producers.add(id=producer.to_bytes(PRODUCER_BYTES, "big"))
        entry.state.last_ack, entry.state.begin = known.min_clock, known.begin
    if (epoch := offset.epochs.get(name)) is not None:
        position.epoch.CopyFrom(epoch)
    return position


def _told(text: str) -> str:
    """Return an offset for people; of Kafka's as `KafkaSource` takes it."""
    try:
        value = json.loads(text)
        topics = {
            (topic, int(partition)): int(offset)
            for topic, partitions in value.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return text[:_SHOWN_MAX]
    return f"KafkaSource(…, start=AtOffsets({topics}))"[:_SHOWN_MAX]
