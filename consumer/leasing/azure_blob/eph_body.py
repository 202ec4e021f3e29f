"""The blobs of Azure's Event Processor Host: lease and checkpoint of a partition in one.

    body       {"partitionId":"0","owner":"host-1","epoch":4,"token":"<lease id>","sequenceNumber":17,"offset":"4096",
                "record":{…}}
    metadata   owninghost = the owner

Its epoch counts from -1, ours from 0: a host that opens a receiver gives it ours less one. `offset` is absent until the
first checkpoint, and then the position is that pair. What these fields cannot say, a host does not know: it stands in
`record`, which no other program writes; a host that takes the lease drops it, and with it a checkpoint of another kind.

Source: Azure/azure-event-hubs-node processor/lib/azureBlob.ts, blobLease (fields and their defaults).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from allocator.errors import ValidationError
from consumer.errors import InvalidPositionError, InvalidStateError
from consumer.leasing.azure_blob.naming import header_value
from consumer.leasing.codec import decode, encode
from consumer.leasing.position import Position
from consumer.leasing.record import LeaseRecord

OWNER_METADATA: Final = "owninghost"
SEQUENCE_NUMBER_MAX: Final = 2**53 - 1
"""Largest number that a program in JavaScript reads exactly."""
_RECORD: Final = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class EphLease:
    """What a body says."""

    record: LeaseRecord
    token: str
    """The id of the owner's native lease; empty: nobody's."""


def body_of(record: LeaseRecord, token: str) -> bytes:
    """Return a record as a host writes and reads it."""
    fields: dict[str, object] = {
        "partitionId": record.key,
        "owner": record.owner or "",
        "epoch": record.epoch - 1,
        "token": token,
        "sequenceNumber": 0,
    }
    position = record.checkpoint
    if position is not None and _is_plain(position):
        fields |= {"sequenceNumber": int(position.seq), "offset": position.offset}
    fields[_RECORD] = json.loads(encode(record))
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def metadata_of(record: LeaseRecord) -> dict[str, str]:
    """Return what listings show of a record; nothing if it has no owner."""
    return {} if record.owner is None else {OWNER_METADATA: header_value(record.owner)}


def read_body(body: bytes, *, key: str, name: str) -> EphLease:
    """Return what a body says.

    Raises:
        InvalidStateError: it is none; the error names the blob and the field.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidStateError(
            f"blob {name}: expected JSON, got {body!r:.80}; restore or delete it"
        ) from error
    if not isinstance(fields, dict):
        raise InvalidStateError(f"blob {name}: expected an object, got {body!r:.80}")
    token = _text(fields, "token", name)
    if fields.get(_RECORD) is None:
        return EphLease(record=_record_of_host(fields, key=key, name=name), token=token)
    return EphLease(record=decode(json.dumps(fields[_RECORD]), key=key), token=token)


def _record_of_host(fields: dict[str, object], *, key: str, name: str) -> LeaseRecord:
    """Return what a host wrote."""
    epoch = _whole(fields, "epoch", name, default=-1)
    offset = _text(fields, "offset", name)
    sequence_number = _whole(fields, "sequenceNumber", name)
    owner = _text(fields, "owner", name)
    try:
        return LeaseRecord(
            key=key,
            epoch=epoch + 1,
            owner=owner or None,
            checkpoint=Position(str(sequence_number), offset=offset) if offset else None,
        )
    except (ValidationError, InvalidPositionError) as error:
        raise InvalidStateError(f"blob {name}: {error}") from error


def _is_plain(position: Position) -> bool:
    """Tell whether a host can read a position."""
    if position.is_name or position.sub or not position.offset:
        return False
    return int(position.seq) <= SEQUENCE_NUMBER_MAX


def _text(fields: dict[str, object], field: str, name: str) -> str:
    value = fields.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidStateError(f"blob {name}: {field}: expected a text, got {value!r:.80}")
    return value


def _whole(fields: dict[str, object], field: str, name: str, *, default: int = 0) -> int:
    value = fields.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidStateError(f"blob {name}: {field}: expected a whole number, got {value!r:.80}")
    return value
