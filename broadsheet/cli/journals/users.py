"""Shards that use a journal: read it, record into it, or leave messages in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

NAMED_MAX = 5
"""Journals, and shards of each, that a refusal names; the rest are counted."""


class Use(Enum):
    """The purpose for which a shard has a journal."""

    SOURCE = "reads it"
    RECOVERY_LOG = "records into it"
    DEAD_LETTERS = "leaves messages in it"


@dataclass(frozen=True, slots=True)
class JournalUser:
    """A shard that uses a journal."""

    journal: str
    shard: str
    use: Use


def uses_of(spec: ShardSpec) -> Iterator[JournalUser]:
    """Find the journals that a shard uses, paused or not."""
    # A suffix after `;` is not the journal's: it tells the shard's readers apart.
    for source in dict.fromkeys(each.journal.partition(";")[0] for each in spec.sources):
        yield JournalUser(source, spec.id, Use.SOURCE)
    if log := recovery_log_of(spec):
        yield JournalUser(log, spec.id, Use.RECOVERY_LOG)
    if letters := value_of(spec.labels, DEAD_LETTER_JOURNAL):
        yield JournalUser(letters, spec.id, Use.DEAD_LETTERS)


def describe_users(users: Sequence[JournalUser]) -> str:
    """Return which journals are used, by which shards and for what."""
    by_journal: dict[str, list[JournalUser]] = {}
    for each in users:
        by_journal.setdefault(each.journal, []).append(each)
    texts = []
    for journal, found in [*by_journal.items()][:NAMED_MAX]:
        named = [f"{each.shard} {each.use.value}" for each in found[:NAMED_MAX]]
        texts.append(f"{journal} is in use: {', '.join(named)}{_more(len(found))}")
    return "; ".join(texts) + _more(len(by_journal))


def _more(count: int) -> str:
    return f" and {count - NAMED_MAX} more" if count > NAMED_MAX else ""
