"""Blobs of Azure's event processors: one of ownership and one of checkpoint, with their fields in metadata.

    {namespace}/{hub}/{group}/ownership/{partition}     ownerid             and, of ours: record, the body
    {namespace}/{hub}/{group}/checkpoint/{partition}    offset, sequencenumber            and, of ours: commit

The ownership blob is the record: each write of ours compares its ETag, and puts the whole record into its body. Other
programs write metadata only, so the body survives their writes. Metadata without `record` shows that another program
wrote last: the owner that it names has the lease in a new epoch. The checkpoint blob repeats the record's checkpoint
for other programs.

A checkpoint blob without `commit` overrides the record: it holds another program's checkpoint, or one of ours that
changes nothing else, for which the ownership blob is not written. The exception is a blob whose ETag the record names:
the record's checkpoint was written over it, and could not be repeated there. A worker that acquires a lease rewrites
the checkpoint blob, with `commit`, so that a late checkpoint of the former holder, which compares its ETag, is refused.

Source: Azure/azure-sdk-for-python sdk/eventhub/azure-eventhub-checkpointstoreblob-aio (paths and metadata).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from broadsheet.leases.codec import decode, encode
from broadsheet.leases.errors import InvalidPositionError, InvalidStateError
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.stores.azure.container import (
    Blob,
    BlobContent,
    FencedVersion,
    decoded,
    encoded,
    header_value,
)
from broadsheet.leases.stores.azure.native import (
    IN_BODY,
    RECORD_METADATA,
    record_in,
    record_metadata,
)
from broadsheet.runtime.errors import ValidationError

OWNER_METADATA: Final = "ownerid"
OFFSET_METADATA: Final = "offset"
SEQUENCE_NUMBER_METADATA: Final = "sequencenumber"
COMMIT_METADATA: Final = "commit"
"""The counter of the record whose checkpoint is repeated."""
OWNERSHIP: Final = "ownership"
CHECKPOINT: Final = "checkpoint"
_OVER: Final = "checkpointOver"
"""Field of a record in a body: the ETag of the checkpoint blob that it was written over."""
_SCOPE_SEGMENTS: Final = 3
_COMMIT_DIGITS_MAX: Final = 40
"""Most digits of a counter, which grows by at most the seconds since 1970 with each write; Python parses no number of
thousands of digits.
"""


@dataclass(frozen=True, slots=True)
class HubNames:
    """Blob names of one consumer group, or of all groups in a container."""

    scope: str | None
    """`namespace/hub/group` in lower case, and keys are partitions; None: keys are `namespace/hub/group/partition`."""

    def __post_init__(self) -> None:
        if self.scope is not None and self.scope.count("/") != _SCOPE_SEGMENTS - 1:
            raise ValidationError("scope", f"expected namespace/hub/group, got {self.scope!r:.80}")

    def name(self, kind: str, key: str) -> str:
        """Return the name of a key's blob of a kind.

        Raises:
            ValidationError: the key says neither hub nor group, and should.
        """
        scope, partition = self.scope, key
        if scope is None:
            scope, _, partition = key.rpartition("/")
            if scope.count("/") != _SCOPE_SEGMENTS - 1:
                raise ValidationError(
                    "lease.key", f"expected namespace/hub/group/partition, got {key!r:.80}"
                )
        return f"{scope}/{kind}/{encoded(partition, lower=True)}"

    def prefix(self, kind: str) -> str:
        """Return the prefix of the names of a kind."""
        return "" if self.scope is None else f"{self.scope}/{kind}/"

    def key_of(self, kind: str, name: str) -> str | None:
        """Return the key of a name; None if it is of another kind."""
        *scope, found, partition = name.split("/")
        if len(scope) != _SCOPE_SEGMENTS or found != kind or not partition:
            return None
        key = decoded(partition)
        return key if self.scope is not None else "/".join((*scope, key))


def needs_body(ownership: Blob) -> bool:
    """Tell whether the record of a listed blob is in its body only."""
    return ownership.metadata.get(RECORD_METADATA, IN_BODY) == IN_BODY


def merged(key: str, ownership: Blob | None, checkpoint: Blob | None) -> Versioned | None:
    """Merge two blobs into a record; return None if there is neither.

    Args:
        key: Of the record.
        ownership: Its blob, with its body if `needs_body`.
        checkpoint: Its blob, read after the other.

    Raises:
        InvalidStateError: it cannot be read; the error names the blob and the field.
    """
    if ownership is None and checkpoint is None:
        return None
    record, over = (LeaseRecord(key=key), "") if ownership is None else _record_of(key, ownership)
    if checkpoint is not None:
        is_repeated = COMMIT_METADATA in checkpoint.metadata or checkpoint.etag == over
        if ownership is None or not is_repeated:
            position = _position_of(checkpoint)
            record = checkpointed(record, position)
    return versioned(
        record,
        etag="" if ownership is None else ownership.etag,
        checkpoint_etag="" if checkpoint is None else checkpoint.etag,
    )


def versioned(record: LeaseRecord, *, etag: str, checkpoint_etag: str) -> Versioned:
    """Return a record whose fence is its epoch, because blobs do not show which workers live."""
    fence = 0 if record.holder is None else record.epoch + 1
    version = FencedVersion(etag=etag, fence=fence, checkpoint_etag=checkpoint_etag)
    return Versioned(record=record, version=version.text(), fence=fence)


def ownership_content(record: LeaseRecord, *, over: str) -> BlobContent:
    """Return the content of an ownership blob.

    Args:
        record: All of it.
        over: The ETag of the checkpoint blob that its checkpoint takes the place of; empty: of none.
    """
    attrs = {**record.attrs, _OVER: json.dumps(over)} if over else record.attrs
    stored = replace(record, attrs=attrs)
    owner = {OWNER_METADATA: header_value(record.owner or "")}
    return BlobContent(body=encode(stored).encode(), metadata=owner | record_metadata(stored))


def checkpointed(record: LeaseRecord, position: Position | None) -> LeaseRecord:
    """Return a record with the checkpoint of its own blob, which ends a pending one as any commit does."""
    return replace(record, checkpoint=position, pending=None, pending_state=None, owner_switches=0)


def lone_checkpoint(before: LeaseRecord, after: LeaseRecord) -> BlobContent | None:
    """Return the checkpoint blob of a change of only the checkpoint.

    None: the change is more, or other programs could not read the position.
    """
    if after != checkpointed(before, after.checkpoint) or after.checkpoint == before.checkpoint:
        return None
    content = checkpoint_content(after)
    return None if content is None else _without_commit(content.metadata)


def fenced_checkpoint(
    record: LeaseRecord, over: str, found: Blob
) -> tuple[BlobContent, LeaseRecord]:
    """Return the checkpoint blob that an acquisition writes, and the record with that blob's checkpoint.

    Args:
        record: As it was acquired.
        over: The ETag of the checkpoint blob that it was read with.
        found: The blob now. The holder before may have written it since.
    """
    if found.etag == over or COMMIT_METADATA in found.metadata:
        metadata = {**found.metadata, COMMIT_METADATA: str(record.counter)}
        return BlobContent(metadata=metadata), record
    return _without_commit(found.metadata), checkpointed(record, _position_of(found))


def _without_commit(metadata: Mapping[str, str]) -> BlobContent:
    return BlobContent(
        metadata={name: value for name, value in metadata.items() if name != COMMIT_METADATA}
    )


def checkpoint_content(record: LeaseRecord) -> BlobContent | None:
    """Return the content of a checkpoint blob; None if other programs could not read the position."""
    position = record.checkpoint
    if position is None or position.is_name or position.sub or not position.offset:
        return None
    return BlobContent(
        metadata={
            OFFSET_METADATA: header_value(position.offset),
            SEQUENCE_NUMBER_METADATA: position.seq,
            COMMIT_METADATA: str(record.counter),
        }
    )


def commit_of(checkpoint: Blob) -> int | None:
    """Return the counter of the record whose checkpoint a blob repeats; None if another program wrote it."""
    text = checkpoint.metadata.get(COMMIT_METADATA, "")
    return int(text) if text.isdecimal() and len(text) <= _COMMIT_DIGITS_MAX else None


def _record_of(key: str, ownership: Blob) -> tuple[LeaseRecord, str]:
    """Return the record of an ownership blob, and the ETag that its checkpoint was written over."""
    if RECORD_METADATA not in ownership.metadata:
        return _record_of_others(key, ownership)
    is_in_body = needs_body(ownership)
    return _own_record(key, (ownership.body or b"") if is_in_body else record_in(ownership))


def _own_record(key: str, text: bytes) -> tuple[LeaseRecord, str]:
    record = decode(text, key=key)
    attrs = dict(record.attrs)
    try:
        over = json.loads(attrs.pop(_OVER, '""'))
    except (ValueError, RecursionError) as error:
        raise InvalidStateError(f"lease {key}: {_OVER} in its record: {error}") from error
    return replace(record, attrs=attrs), str(over)


def _record_of_others(key: str, ownership: Blob) -> tuple[LeaseRecord, str]:
    """Return the record after another program's write: the owner it names has it in a new epoch."""
    owner = ownership.metadata.get(OWNER_METADATA)
    if owner is None:
        raise InvalidStateError(f"blob {ownership.name}: expected {OWNER_METADATA} in its metadata")
    base, over = LeaseRecord(key=key), ""
    if ownership.body:
        base, over = _own_record(key, ownership.body)
    is_other = owner not in ("", header_value(base.owner or ""))
    # Its renewals show only their time, which suffices because observers only need to see the counter move. Two claims
    # within a second differ by the blob's ETag.
    beats = max(1, int(ownership.modified_at.timestamp()))
    record = replace(
        base,
        owner=owner or None,
        handoff_from=None,
        claim=None,
        epoch=base.epoch + 1,
        counter=base.counter + beats,
        owner_switches=base.owner_switches + (is_other and base.owner is not None),
        write_id=ownership.etag,
    )
    return record, over


def _position_of(checkpoint: Blob) -> Position:
    """Parse the position of a checkpoint blob."""
    values = []
    for field in (SEQUENCE_NUMBER_METADATA, OFFSET_METADATA):
        value = checkpoint.metadata.get(field)
        if value is None:
            raise InvalidStateError(f"blob {checkpoint.name}: expected {field} in its metadata")
        values.append(value)
    seq, offset = values
    if not seq.isdecimal():
        raise InvalidStateError(
            f"blob {checkpoint.name}: {SEQUENCE_NUMBER_METADATA}: expected a whole number, at least 0, got {seq!r:.80}"
        )
    try:
        return Position(seq, offset=offset or None)
    except InvalidPositionError as error:
        raise InvalidStateError(f"blob {checkpoint.name}: {error}") from error
