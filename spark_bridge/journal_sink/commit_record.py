"""The record of a commit: the acknowledgements of what was published, where, by whom, and how long it is kept.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broadsheet.runtime.formats import Format, LaterFormatError
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.row_content import RowContent

PUBLICATION: Final = Format("a publication", "publish again with that release")
RETENTION_DAYS: Final = 30
"""Default retention of records of commits: longer than anybody waits before they rerun a failed job."""
RECORD_BYTES_MAX: Final = 1 << 20
"""Largest record: etcd refuses requests of more than 1.5 MiB. Some 8,000 tasks fit."""
NO_BATCH: Final = -1
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """The uncommitted messages of one successful attempt of a task."""

    messages: int
    acknowledgement: bytes
    """Framed; commits the attempt's messages in each of its journals."""
    journals: tuple[str, ...]
    """Journals that it wrote to."""
    content: RowContent = field(default_factory=RowContent)
    """Of its rows; only streams need it."""
    producer: int = 0
    """Of its messages, 48 bits."""
    ended_at: float = 0.0
    """When all was appended, wall time of the task's host, seconds since the Unix epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """The journals that a write goes to, a part of its identity."""

    selector: str
    """As `format_selector` writes it; empty if the journals were listed by the caller."""
    journals: tuple[str, ...]
    """Journals that the selector selects now, and the parts into which they are divided by key, or will be."""
    brokers: str = ""
    """Identity of the brokers' cluster, hexadecimal; empty if unknown."""

    @property
    def text(self) -> str:
        """The target for an error."""
        return self.selector or ", ".join(self.journals)


class Publication(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published DataFrame or micro-batch, as etcd keeps it: enough to acknowledge it any number of times."""

    messages: int
    """Messages published."""
    acknowledgements: list[bytes]
    """Framed acknowledgements, one for each attempt that wrote anything."""
    attempts: dict[str, str]
    """Attempts that wrote to each journal: a hexadecimal number whose bit i means `acknowledgements[i]`."""
    committed_at: float = 0.0
    """Wall time, seconds since the Unix epoch."""
    batch: int = NO_BATCH
    """Number of the micro-batch; -1 for a batch write."""
    retention_days: float = 0.0
    """Time for which its writer was promised that it is kept, from its commit; 0 in records of earlier versions."""
    selector: str = ""
    """Of its target; empty in records of earlier versions."""
    brokers: str = ""
    """Of its target."""
    checkpoint: str = ""
    """The query's option `checkpointLocation`; empty if it was not given."""
    content: str = ""
    """`RowContent.text` of a micro-batch's rows, and `:ROWS` if messages hold several; empty in records of earlier
    versions."""

    producers: list[int] = []
    """Of each of `acknowledgements`; empty in records of earlier versions."""

    def producers_in(self, journal: str) -> list[int]:
        """Return the producers of the attempts that wrote to a journal."""
        bits = int(self.attempts[journal], 16)
        return [each for index, each in enumerate(self.producers) if bits >> index & 1]

    @property
    def intents(self) -> dict[str, bytes]:
        """Content to append to each journal at once: acknowledgements of all attempts that wrote to it."""
        return {
            journal: b"".join(
                acknowledgement
                for index, acknowledgement in enumerate(self.acknowledgements)
                if int(bits, 16) >> index & 1
            )
            for journal, bits in self.attempts.items()
        }

    @property
    def target_text(self) -> str:
        """The target for an error."""
        return self.selector or ", ".join(self.attempts)

    def is_expired(self, now: float, *, retention_days: float) -> bool:
        """Return whether the record may be removed.

        Args:
            now: Wall time, seconds since the Unix epoch.
            retention_days: The remover's own retention.
        """
        # What the writer was promised decides. It is unknown of an earlier version's record, which therefore is kept
        # at least for the default.
        kept = self.retention_days or max(RETENTION_DAYS, retention_days)
        return self.committed_at < now - kept * _DAY_SECONDS


def publication_of(
    attempts: Iterable[CommitAttempt], *, committed_at: float, batch: int = NO_BATCH
) -> Publication:
    """Return the publication that commits the attempts, without its target and retention.

    Args:
        attempts: Of all tasks.
        committed_at: Wall time, seconds since the Unix epoch.
        batch: Number of the micro-batch.
    """
    given = tuple(attempts)
    written = [attempt for attempt in given if attempt.journals]
    bits: dict[str, int] = {}
    for index, attempt in enumerate(written):
        for journal in attempt.journals:
            bits[journal] = bits.get(journal, 0) | 1 << index
    content = sum((attempt.content for attempt in given), RowContent())
    messages = sum(attempt.messages for attempt in written)
    return Publication(
        messages=messages,
        acknowledgements=[attempt.acknowledgement for attempt in written],
        attempts={journal: f"{bits[journal]:x}" for journal in sorted(bits)},
        committed_at=committed_at,
        batch=batch,
        content="" if batch == NO_BATCH else _recorded(content, messages),
        producers=[attempt.producer for attempt in written],
    )


def _recorded(content: RowContent, messages: int) -> str:
    # The number of rows is added only where it differs, so that other records stay as earlier versions wrote them.
    return content.text if content.rows == messages else f"{content.text}:{content.rows}"


def encoded(publication: Publication) -> bytes:
    """Return a publication's value in etcd.

    Raises:
        PublishError: etcd would refuse it.
    """
    value = msgspec.json.encode(publication)
    if len(value) > RECORD_BYTES_MAX:
        raise PublishError(
            f"{len(publication.acknowledgements)} tasks wrote to {len(publication.attempts)} journals, and their "
            f"acknowledgements take {len(value)} bytes; etcd keeps {RECORD_BYTES_MAX}. Nothing is committed: "
            "coalesce() to fewer partitions"
        )
    return value


def decoded(value: bytes, key: bytes) -> Publication:
    """Return the publication of a value in etcd.

    Raises:
        PublishError: the value is not a publication; the error names its key.
    """
    try:
        publication = PUBLICATION.decode_json(value, Publication)
        _ = publication.intents
    except LaterFormatError as error:
        raise PublishError(f"{key.decode(errors='replace')}: {error}") from error
    except ValueError as error:
        raise PublishError(
            f"what etcd keeps at {key.decode(errors='replace')} is no publication ({error}): whether it was published"
            " is unknown. Restore it from a backup of etcd, or delete it to publish again"
        ) from error
    return publication
