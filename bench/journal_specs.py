"""Journals for benchmarks."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from broadsheet.journals.content.json import NDJSON
from broadsheet.wire.journal_pb2 import NONE, ApplyRequest, JournalSpec
from broadsheet.wire.labels import CONTENT_TYPE, label_set

FRAGMENT_BYTES = 256 << 20


def journal_change(
    name: str,
    content_type: str = NDJSON,
    *,
    fragment_bytes: int = FRAGMENT_BYTES,
) -> ApplyRequest.Change:
    """Return a change that makes a journal, whatever was there before."""
    spec = JournalSpec(
        name=name,
        replication=1,
        labels=label_set((CONTENT_TYPE, content_type)),
        fragment=JournalSpec.Fragment(
            length=fragment_bytes, compression_codec=NONE, refresh_interval=Duration(seconds=60)
        ),
    )
    return ApplyRequest.Change(expect_mod_revision=-1, upsert=spec)
