"""Checkpoints as stores keep them: decoded, and put together with their segments."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from broadsheet.consumer.errors import StoreError
from broadsheet.journals.message.checkpoint import put_together
from broadsheet.wire.shard_pb2 import Checkpoint


def stored_checkpoint(shard_fqn: str, encoded: bytes | None) -> Checkpoint:
    """Parse a stored checkpoint; an empty one if there is none yet.

    Raises:
        StoreError: the bytes are none; the error names the shard.
    """
    try:
        return Checkpoint.FromString(encoded or b"")
    except DecodeError as error:
        raise StoreError(
            shard_fqn,
            f"its stored checkpoint cannot be read: {error}; restore state and checkpoint together, from a copy",
        ) from error


def whole_checkpoint(
    shard_fqn: str, checkpoint: Checkpoint, segments: Mapping[bytes, bytes]
) -> Checkpoint:
    """Return the complete checkpoint of one that refers to segments.

    Args:
        shard_fqn: The shard.
        checkpoint: As it was stored.
        segments: Contents by id, of all that the store has.

    Raises:
        StoreError: a segment is missing or damaged; the error names the shard, the journal and the segment.
    """
    try:
        return put_together(checkpoint, segments)
    except ValueError as error:
        raise StoreError(shard_fqn, f"cannot restore: {error}") from error
