"""What was published, as etcd keeps it: enough to make it visible, as often as it takes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from allocator.documents import decode_json
from spark_bridge.errors import PublishError

RECORD_BYTES_MAX = 1 << 20
"""Etcd refuses requests of more than 1.5 MiB. Some 8,000 tasks fit."""
NO_BATCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one successful attempt of a task wrote, uncommitted."""

    messages: int
    acknowledgement: bytes
    """Framed; commits what the attempt wrote, in each of its journals."""
    journals: tuple[str, ...]
    """Those it wrote to."""


class Publication(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published DataFrame, or a published micro-batch."""

    messages: int
    """Messages published."""
    acknowledgements: list[bytes]
    """Framed, one for each attempt that wrote anything."""
    attempts: dict[str, str]
    """Which attempts wrote to a journal: a hexadecimal number whose bit i stands for `acknowledgements[i]`."""
    committed_at: float = 0.0
    """Wall time, seconds since the Unix epoch."""
    batch: int = NO_BATCH
    """Number of the micro-batch; -1 if it is none."""

    @property
    def intents(self) -> dict[str, bytes]:
        """Bytes to append to each journal, at once: acknowledgements of all attempts that wrote to it."""
        return {
            journal: b"".join(
                acknowledgement
                for index, acknowledgement in enumerate(self.acknowledgements)
                if int(bits, 16) >> index & 1
            )
            for journal, bits in self.attempts.items()
        }


def publication_of(attempts: Iterable[Attempt], *, batch: int = NO_BATCH) -> Publication:
    """Return what would commit the attempts."""
    written = [attempt for attempt in attempts if attempt.journals]
    bits: dict[str, int] = {}
    for index, attempt in enumerate(written):
        for journal in attempt.journals:
            bits[journal] = bits.get(journal, 0) | 1 << index
    return Publication(
        messages=sum(attempt.messages for attempt in written),
        acknowledgements=[attempt.acknowledgement for attempt in written],
        attempts={journal: f"{bits[journal]:x}" for journal in sorted(bits)},
        committed_at=time.time(),
        batch=batch,
    )


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
        PublishError: it is none; the error names its key.
    """
    try:
        publication = decode_json(value, Publication)
        _ = publication.intents
    except ValueError as error:
        raise PublishError(
            f"what etcd keeps at {key.decode(errors='replace')} is no publication ({error}): whether it was published"
            " is unknown. Restore it from a backup of etcd, or delete it to publish again"
        ) from error
    return publication
