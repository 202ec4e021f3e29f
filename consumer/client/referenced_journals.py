"""Verification of the journals named by shard specs: they exist and have a suitable content type.

Source: gazette/core consumer/shard_client.go (VerifyReferencedJournals).
"""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.allocator.errors import ValidationError
from broadsheet.consumer.errors import ContentTypeError, JournalNotFoundError
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.message.framing import framing_for
from broadsheet.consumer.protocol.journal_pb2 import JournalSpec
from broadsheet.consumer.protocol.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_JSON_LINES,
    CONTENT_TYPE_RECOVERY_LOG,
    DEAD_LETTER_JOURNAL,
    value_of,
    values_of,
)
from broadsheet.consumer.protocol.shard_pb2 import ApplyRequest, ShardSpec
from broadsheet.consumer.recoverylog.hints import recovery_log_of


async def verify_referenced_journals(
    changes: Sequence[ApplyRequest.Change], journals: JournalClient
) -> None:
    """Check every upserted shard's sources, recovery log and dead-letter journal. Each journal is looked up once.

    Raises:
        ValidationError: a journal is missing, or its content type does not fit; the field and the journal are named.
    """
    known: dict[str, JournalSpec | None] = {}
    for index, change in enumerate(changes):
        if not change.HasField("upsert"):
            continue
        try:
            await _verify(change.upsert, journals, known)
        except ValidationError as error:
            shard = f"changes[{index}].upsert (shard {change.upsert.id})"
            raise error.under(shard) from error


async def _verify(
    spec: ShardSpec, journals: JournalClient, known: dict[str, JournalSpec | None]
) -> None:
    for index, source in enumerate(spec.sources):
        field_path = f"sources[{index}].journal"
        journal = await _look_up(source.journal, field_path, journals, known)
        content_type = value_of(journal.labels, CONTENT_TYPE)
        try:
            framing_for(content_type)
        except ContentTypeError as error:
            raise ValidationError(field_path, f"journal {source.journal}: {error}") from error
    for name in values_of(spec.labels, DEAD_LETTER_JOURNAL):
        field_path = f"labels[{DEAD_LETTER_JOURNAL}]"
        journal = await _look_up(name, field_path, journals, known)
        content_type = value_of(journal.labels, CONTENT_TYPE)
        if content_type != CONTENT_TYPE_JSON_LINES:
            raise ValidationError(
                field_path,
                f"journal {name}: expected label {CONTENT_TYPE}={CONTENT_TYPE_JSON_LINES}, "
                f"got {content_type!r}",
            )
    log = recovery_log_of(spec)
    if log:
        journal = await _look_up(log, "recovery_log_prefix", journals, known)
        content_type = value_of(journal.labels, CONTENT_TYPE)
        if content_type != CONTENT_TYPE_RECOVERY_LOG:
            raise ValidationError(
                "recovery_log_prefix",
                f"journal {log}: expected label {CONTENT_TYPE}={CONTENT_TYPE_RECOVERY_LOG}, "
                f"got {content_type!r}",
            )


async def _look_up(
    name: str, field_path: str, journals: JournalClient, known: dict[str, JournalSpec | None]
) -> JournalSpec:
    # A source may carry a `;meta` suffix that distinguishes readers; the journal's name is the part before it.
    name = name.partition(";")[0]
    if name not in known:
        try:
            known[name] = (await journals.get(name)).spec
        except JournalNotFoundError:
            known[name] = None
    spec = known[name]
    if spec is None:
        raise ValidationError(
            field_path, f"journal {name} does not exist; apply it before the shard"
        )
    return spec
