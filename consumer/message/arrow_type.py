"""Arrow messages: the UUID, and after it an IPC stream of one record batch.

The UUID stands before the stream, so that sequencing parses no Arrow; an acknowledgement is a UUID and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumer.message.arrow_ipc import read_stream
from consumer.message.framing import ARROW_STREAM
from consumer.message.uuid import NIL_UUID

if TYPE_CHECKING:
    import pyarrow as pa

_UUID_BYTES = len(NIL_UUID)


@dataclass(slots=True)
class ArrowMessage:
    """Rows that were published together."""

    rows: pa.RecordBatch | None
    """None in an acknowledgement."""
    uuid: bytes = NIL_UUID


class ArrowType:
    """Messages are `ArrowMessage`s. Needs pyarrow: install `broadsheet[spark]`."""

    content_type = ARROW_STREAM

    def decode(self, payload: bytes) -> Any:
        """Return the rows of a payload, validated; they share its memory."""
        import pyarrow as pa

        uuid = self.uuid_of(payload)
        if len(payload) == _UUID_BYTES:
            return ArrowMessage(None, uuid)
        _, batches = read_stream(pa.py_buffer(payload).slice(_UUID_BYTES))
        if not batches:
            raise ValueError("not an Arrow stream of one batch: it has none")
        return ArrowMessage(batches[0], uuid)

    def encode(self, message: Any) -> bytes:
        """Return UUID and stream."""
        import pyarrow as pa

        if message.rows is None:
            return bytes(message.uuid)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, message.rows.schema) as stream:
            stream.write_batch(message.rows)
        return bytes(message.uuid) + bytes(sink.getvalue())

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the first 16 bytes."""
        if len(payload) < _UUID_BYTES:
            raise ValueError(f"{len(payload)} bytes hold no UUID")
        return payload[:_UUID_BYTES]

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Set the UUID."""
        message.uuid = uuid

    def new_acknowledgement(self, journal: str) -> Any:
        """Return a message without rows."""
        del journal
        return ArrowMessage(None)
