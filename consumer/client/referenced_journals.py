"""Verification of the journals named by shard specs: they exist and have a suitable content type.

Source: gazette/core consumer/shard_client.go (VerifyReferencedJournals).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from broadsheet.consumer.recoverylog.hints import recovery_log_of
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.content.registry import framing_for
from broadsheet.journals.errors import ContentTypeError
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_RECOVERY_LOG,
    DEAD_LETTER_JOURNAL,
    NAME,
    label_set,
    selector,
    value_of,
    values_of,
)
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec

NAMES_PER_LISTING = 128
"""Journals asked for by one listing: a broker may look at every journal for each, however many it names."""


async def verify_referenced_journals(
    changes: Sequence[ApplyRequest.Change],
    journals: JournalClient,
    *,
    planned: Iterable[JournalSpec] = (),
) -> None:
    """Check every upserted shard's sources, recovery log and dead-letter journal; journals are looked up in bulk.

    Args:
        changes: Of shards.
        journals: Client of their brokers.
        planned: Journals that are to be created before the changes are applied.

    Raises:
        ValidationError: a journal is missing, or its content type does not fit; the field and the journal are named.
    """
    found = await look_up(
        dict.fromkeys(
            name
            for change in changes
            if change.HasField("upsert")
            for name in _names_in(change.upsert)
        ),
        journals,
    )
    known = {**{spec.name: spec for spec in planned}, **found}
    for index, change in enumerate(changes):
        if not change.HasField("upsert"):
            continue
        try:
            _verify(change.upsert, known)
        except ValidationError as error:
            shard = f"changes[{index}].upsert (shard {change.upsert.id})"
            raise error.under(shard) from error


def _names_in(spec: ShardSpec) -> Iterator[str]:
    """Yield the journals that a spec names."""
    for source in spec.sources:
        yield bare_name(source.journal)
    yield from values_of(spec.labels, DEAD_LETTER_JOURNAL)
    if log := recovery_log_of(spec):
        yield log


def bare_name(name: str) -> str:
    """Return a source's journal without the `;meta` suffix that distinguishes readers."""
    return name.partition(";")[0]


async def look_up(names: Iterable[str], journals: JournalClient) -> Mapping[str, JournalSpec]:
    """Return the specs of those journals that exist."""
    found: dict[str, JournalSpec] = {}
    left = iter(names)
    while asked := list(islice(left, NAMES_PER_LISTING)):
        listing = await journals.list(selector(label_set(*((NAME, name) for name in asked))))
        found |= {journal.spec.name: journal.spec for journal in listing.journals}
    return found


def _verify(spec: ShardSpec, known: Mapping[str, JournalSpec]) -> None:
    for index, source in enumerate(spec.sources):
        field_path = f"sources[{index}].journal"
        journal = _known(bare_name(source.journal), field_path, known)
        content_type = value_of(journal.labels, CONTENT_TYPE)
        try:
            framing_for(content_type)
        except ContentTypeError as error:
            raise ValidationError(field_path, f"journal {source.journal}: {error}") from error
    for name in values_of(spec.labels, DEAD_LETTER_JOURNAL):
        field_path = f"labels[{DEAD_LETTER_JOURNAL}]"
        journal = _known(name, field_path, known)
        content_type = value_of(journal.labels, CONTENT_TYPE)
        if content_type != NDJSON:
            raise ValidationError(
                field_path,
                f"journal {name}: expected label {CONTENT_TYPE}={NDJSON}, got {content_type!r}",
            )
    log = recovery_log_of(spec)
    if log:
        journal = _known(log, "recovery_log_prefix", known)
        content_type = value_of(journal.labels, CONTENT_TYPE)
        if content_type != CONTENT_TYPE_RECOVERY_LOG:
            raise ValidationError(
                "recovery_log_prefix",
                f"journal {log}: expected label {CONTENT_TYPE}={CONTENT_TYPE_RECOVERY_LOG}, "
                f"got {content_type!r}",
            )


def _known(name: str, field_path: str, known: Mapping[str, JournalSpec]) -> JournalSpec:
    spec = known.get(name)
    if spec is None:
        raise ValidationError(
            field_path, f"journal {name} does not exist; apply it before the shard"
        )
    return spec
