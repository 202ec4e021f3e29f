"""Shards and journals of a test's cluster: as specs say, or made as they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration

from broadsheet.consumer.recoverylog.hints import has_recovery_log, recovery_log_of
from broadsheet.journals.content.json import NDJSON
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import CompressionCodec, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.shard_pb2 import ShardSpec

Shards: TypeAlias = "str | Path | Mapping[str, Sequence[str]] | Sequence[ShardSpec] | None"
"""Shard specs as a file of `shardctl shards apply`, as ids with their source journals, or as specs; None: a shard for
each journal that the test publishes to."""
Journals: TypeAlias = "str | Path | Sequence[JournalSpec] | None"
"""Journal specs as a file of `shardctl journals apply`, or as specs; None: journals are made as they are needed."""

LOG_PREFIX = "recovery/logs"
HINT_PREFIX = "/hints"


def shard_specs(shards: Shards, *, standbys: int) -> list[ShardSpec] | None:
    """Return the specs of shards, None if they follow from what the test publishes.

    Raises:
        ValidationError: the file is wrong; the message names the place in it.
    """
    if shards is None:
        return None
    if isinstance(shards, str | Path):
        from broadsheet.cli.shards.space import read_shard_changes

        path = Path(shards)
        changes = read_shard_changes(_text(path, "shards"), str(path))
        return [change.upsert for change in changes if change.HasField("upsert")]
    if isinstance(shards, Mapping):
        return [
            new_shard(shard_id, sources, standbys=standbys) for shard_id, sources in shards.items()
        ]
    return list(shards)


def journal_specs(journals: Journals) -> list[JournalSpec] | None:
    """Return the specs of journals, None if they are made as they are needed.

    Raises:
        ValidationError: the file is wrong; the message names the place in it.
    """
    if journals is None:
        return None
    if isinstance(journals, str | Path):
        from broadsheet.cli.journals.space import read_journal_changes

        path = Path(journals)
        changes = read_journal_changes(_text(path, "journals"), str(path))
        return [change.upsert for change in changes if change.HasField("upsert")]
    return list(journals)


def _text(path: Path, field: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(field, f"cannot read {path}: {error}") from error


def new_shard(shard_id: str, sources: Iterable[str], *, standbys: int) -> ShardSpec:
    """Return the spec of a shard with a recovery log, so that it can have any store."""
    return ShardSpec(
        id=shard_id,
        sources=[ShardSpec.Source(journal=journal) for journal in sorted(sources)],
        recovery_log_prefix=LOG_PREFIX,
        hint_prefix=HINT_PREFIX,
        hint_backups=2,
        hot_standbys=standbys,
        max_txn_duration=Duration(seconds=1),
    )


def new_journal(name: str, content_type: str = NDJSON) -> JournalSpec:
    """Return the spec of a journal of messages."""
    return JournalSpec(
        name=name,
        replication=1,
        labels=label_set((CONTENT_TYPE, content_type)),
        fragment=JournalSpec.Fragment(
            length=1 << 24,
            compression_codec=CompressionCodec.NONE,
            refresh_interval=Duration(seconds=60),
        ),
    )


def recovery_logs(shards: Iterable[ShardSpec]) -> list[JournalSpec]:
    """Return the recovery logs that shards have."""
    return [
        new_journal(recovery_log_of(spec), CONTENT_TYPE_RECOVERY_LOG)
        for spec in shards
        if has_recovery_log(spec)
    ]
