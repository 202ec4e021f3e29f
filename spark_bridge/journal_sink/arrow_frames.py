"""Rows as Arrow: a message is a stretch of rows of one batch, its payload the UUID and an IPC stream.

    66 33 93 36 | length | UUID, 16 bytes | Arrow IPC stream: schema, one record batch, end

An acknowledgement is a UUID and nothing else. The UUID stands before the stream, so that sequencing parses no Arrow.
"""

from __future__ import annotations

import pyarrow as pa

from consumer.message.framing import ARROW_STREAM, FRAME_BYTES_MAX, FixedFraming
from spark_bridge.journal_sink.encoder import Encoded, Stretches, in_order
from spark_bridge.journal_sink.stamps import Stamper
from spark_bridge.journal_sink.texts import Indices

_FRAME_BYTES_AIM = FRAME_BYTES_MAX // 8
"""Longer stretches are cut in two: readers hold a whole message in memory, and refuse one of 64 MiB."""


class ArrowFrames:
    """Encodes batches of rows."""

    content_type = ARROW_STREAM

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the messages of each stretch of rows, one for a stretch unless it is large."""
        rows = in_order(rows, order)
        streams = [_cut(rows.slice(begin, end - begin)) for begin, end in stretches]
        messages = [len(pieces) for pieces in streams]
        uuids = iter(stamper.stamp_messages(sum(messages)))
        contents = [
            b"".join(_framed(next(uuids).tobytes(), piece) for piece in pieces)
            for pieces in streams
        ]
        return Encoded(contents, messages)

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a frame of the UUID alone."""
        return FixedFraming().frame(uuid)


def _cut(rows: pa.RecordBatch) -> list[bytes]:
    """Return the IPC streams of rows, each of a bearable length unless a single row is longer."""
    if rows.nbytes <= _FRAME_BYTES_AIM or rows.num_rows == 1:
        return [_stream_of(rows)]
    half = rows.num_rows // 2
    return _cut(rows.slice(0, half)) + _cut(rows.slice(half))


def _stream_of(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


def _framed(uuid: bytes, stream: bytes) -> bytes:
    return FixedFraming().frame(uuid + stream)
