"""Dead letters: messages skipped because the application fails at them, and the journal that keeps them.

A dead letter is published within the transaction that skips its message, so it is recorded exactly once, and no
message is skipped without a record.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import structlog

from broadsheet.consumer.shard.supervision import MessagePosition
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import UNREADABLE, MessageBatch
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import build_uuid, format_uuid
from broadsheet.runtime.clock import Clock
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, values_of
from broadsheet.wire.shard_pb2 import ShardSpec

_log = structlog.get_logger()

PAYLOAD_BYTES_MAX: Final = 16 << 20
"""Of a letter, before base 64: so a letter stays far below the longest message that can be read. What is cut off is
still in the source journal, at the letter's offsets."""

_JSON = JsonType()


def dead_letter_journal(spec: ShardSpec) -> str:
    """Return the journal of a shard's dead letters; empty if it has none."""
    return next(iter(values_of(spec.labels, DEAD_LETTER_JOURNAL)), "")


@dataclass(slots=True)
class DeadLetters:
    """Messages that one shard skips, and batches that it consumes one message at a time. Changed between attempts
    only.
    """

    poison: dict[tuple[str, int], str] = field(default_factory=dict)
    """Why each message, by journal and offset, is left out."""
    suspect: MessagePosition | None = None
    """A range to consume message by message."""
    keeps_unreadable: bool = False
    """Whether readers pass on bytes that are not messages, to be skipped too: the shard had a dead-letter journal when
    the attempt began. Without one they would vanish without a trace."""

    def leave_out(self, place: MessagePosition, cause: str) -> None:
        """Skip the one message at `place` from now on, because of `cause`."""
        self.poison[place.journal, place.begin] = cause

    def parts(self, batch: MessageBatch) -> Iterator[tuple[MessageBatch, str | None]]:
        """Yield a batch in parts that the application consumes together; skipped parts come with the reason."""
        if not self._concern(batch):
            yield batch, None
            return
        start = 0
        for index, begin in enumerate(batch.begins.tolist()):
            cause = self.poison.get((batch.journal, begin))
            if cause is None and not self._is_suspect(batch.journal, begin):
                continue
            if start < index:
                yield batch.span(start, index), None
            yield batch.span(index, index + 1), cause
            start = index + 1
        if start < len(batch):
            yield batch.span(start, len(batch)), None

    def _concern(self, batch: MessageBatch) -> bool:
        """Report quickly whether any message of a batch is affected: most batches are not, and skipped messages are
        few.
        """
        if not len(batch) or (not self.poison and self.suspect is None):
            return False
        first, last = int(batch.begins[0]), int(batch.begins[-1])
        place = self.suspect
        suspect = (
            place is not None
            and place.journal == batch.journal
            and place.begin <= last
            and first < place.end
        )
        return suspect or any(
            journal == batch.journal and first <= begin <= last for journal, begin in self.poison
        )

    def _is_suspect(self, journal: str, offset: int) -> bool:
        place = self.suspect
        return place is not None and place.journal == journal and place.begin <= offset < place.end


def publish_dead_letter(
    publisher: Publisher, spec: ShardSpec, message: MessageBatch, cause: str, clock: Clock
) -> None:
    """Publish a skipped message, with the reason, to the shard's dead-letter journal.

    Args:
        publisher: Of the transaction that passes the message by.
        spec: The shard's.
        message: The one message.
        cause: What the application raised.
        clock: Tells when.
    """
    journal, begin, end = message.journal, int(message.begins[0]), int(message.ends[0])
    payload = message.payloads[0]
    at = datetime.fromtimestamp(clock.wall_seconds(), UTC).isoformat(timespec="milliseconds")
    letter: dict[str, object] = {
        "shard": spec.id,
        "journal": journal,
        "begin": begin,
        "end": end,
        "uuid": _uuid_text(message),
        # An application's error may quote half a surrogate pair, which no message can hold.
        "cause": cause.encode("utf-8", "backslashreplace").decode(),
        "at": at,
        "payload_base64": b64encode(payload[:PAYLOAD_BYTES_MAX]).decode(),
    }
    if len(payload) > PAYLOAD_BYTES_MAX:
        letter["payload_bytes"] = len(payload)
    publisher.publish_uncommitted(MappedJournal(dead_letter_journal(spec), NDJSON), letter, _JSON)
    _log.warning(
        "shard.dead_letter", shard=spec.id, journal=journal, begin=begin, end=end, cause=cause
    )


def _uuid_text(message: MessageBatch) -> str:
    """Return the UUID of the one message; empty if the bytes are not a message."""
    if message.flags[0] == UNREADABLE:
        return ""
    producer, clock = int(message.producers[0]), int(message.clocks[0])
    return format_uuid(build_uuid(producer, clock, int(message.flags[0])))
