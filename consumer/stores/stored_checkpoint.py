"""A checkpoint as a store kept it."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from consumer.errors import StoreError
from consumer.protocol.shard_pb2 import Checkpoint


def stored_checkpoint(shard_fqn: str, encoded: bytes | None) -> Checkpoint:
    """Return a checkpoint; an empty one if there is none yet.

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
