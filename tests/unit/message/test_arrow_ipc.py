"""Arrow messages whose bytes are damaged: refused, never a crash, never memory of others, never without bound."""

from __future__ import annotations

import struct
import subprocess
import sys

import pyarrow as pa
import pytest

from broadsheet.journals.content.arrow import ArrowMessage, ArrowType
from broadsheet.journals.message.arrow_ipc import framed_streams
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.spark_bridge.content.arrow import read_arrow

_UUID = b"U" * 16
_FLIP_EVERY_BIT = """
import sys
import pyarrow as pa
from broadsheet.journals.content.arrow import ArrowMessage, ArrowType
from broadsheet.spark_bridge.content.arrow import read_arrow
rows = pa.RecordBatch.from_arrays(
    [pa.array([1, 2, None]), pa.array(["a", "bc", None]), pa.array([[1, 2], None, []])], names=list("abc"))
payload = ArrowType().encode(ArrowMessage(rows, b"U" * 16))
for decode in (lambda data: ArrowType().decode(data).rows, read_arrow):
    for place in range(16, len(payload)):
        for bit in range(8):
            damaged = bytearray(payload)
            damaged[place] ^= 1 << bit
            try:
                found = decode(bytes(damaged))
            except (ValueError, OSError):
                continue
            if found is not None:
                found.to_pylist()
print("survived")
"""


def encoded(rows: pa.RecordBatch, *, codec: str | None = None) -> bytes:
    """Return rows as a message."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_batch(rows)
    return _UUID + bytes(sink.getvalue())


def test_no_flipped_bit_of_a_message_kills_the_process() -> None:
    """Plan: flip each bit of a message in turn, in a process of its own, and look at all values of what is still read,
    as a member and as a task of Spark. Why: a member that dies takes all of its shards along.
    """
    run = subprocess.run(
        [sys.executable, "-c", _FLIP_EVERY_BIT],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode, run.stdout.strip()) == (0, "survived"), run.stderr[-2000:]


def test_offsets_that_leave_the_message_are_refused() -> None:
    """Plan: let the second text of a column end behind its buffer. Why: it would be filled with memory of others."""
    rows = pa.RecordBatch.from_pydict({"s": ["abcd", "efgh"]})
    offsets = struct.pack("<iii", 0, 4, 8)
    damaged = encoded(rows).replace(offsets, struct.pack("<iii", 0, 4, 4000))

    with pytest.raises(ValueError, match="not a valid Arrow stream"):
        ArrowType().decode(damaged)
    with pytest.raises(ValueError, match="not a valid Arrow stream"):
        read_arrow(damaged)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_rows_are_bounded_before_they_are_expanded(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan: a small message that expands to more than the bound, which is lowered here. Why: a few bytes must not take
    all memory of a member.
    """
    rows = pa.RecordBatch.from_pydict({"n": [7] * 100_000})
    payload = encoded(rows, codec=codec)
    assert ArrowType().decode(payload).rows.equals(rows)

    monkeypatch.setattr("broadsheet.journals.message.arrow_ipc.EXPANDED_BYTES_MAX", 500_000)
    with pytest.raises(ValueError, match=r"a batch of 8000.. bytes; the largest allowed is 500000"):
        ArrowType().decode(payload)


def test_rows_that_take_no_bytes_are_bounded() -> None:
    """Plan: a column of two thousand million nulls, which is a number and no bytes. Why: each becomes an object."""

    def nulls(count: int) -> bytes:
        column = pa.Array.from_buffers(pa.null(), count, [None])
        return encoded(pa.RecordBatch.from_arrays([column], names=["a"]))

    assert ArrowType().decode(nulls(1 << 20)).rows.num_rows == 1 << 20
    with pytest.raises(ValueError, match="a batch of 2147483647 values in 0 bytes"):
        ArrowType().decode(nulls((1 << 31) - 1))


def test_a_message_cut_anywhere_is_a_value_error() -> None:
    """Plan: cut a message after each byte. Why: Arrow raises OSError for that, which told nobody of the message."""
    payload = encoded(pa.RecordBatch.from_pydict({"s": ["abcd", "efgh"]}))

    for size in range(17, len(payload) - 8):
        with pytest.raises(ValueError, match="Arrow stream"):
            ArrowType().decode(payload[:size])


def test_types_that_arrow_has_no_class_for_are_refused() -> None:
    """An interval of months is read, and raises KeyError where its column is asked for: it is named in time."""
    batch = pa.record_batch({"wait": pa.array([], pa.month_day_nano_interval())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    content, schema = sink.getvalue().to_pybytes(), batch.schema.serialize().to_pybytes()
    # The unit of the interval is the last value of the schema.
    unit = schema.rindex(struct.pack("<h", 2))
    of_months = content[:unit] + struct.pack("<h", 0) + content[unit + 2 :]

    with pytest.raises(ValueError, match="field 'wait': pyarrow cannot read month_interval"):
        ArrowType().decode(bytes(16) + of_months)


def test_frames_in_one_buffer_are_those_of_single_messages() -> None:
    """Also after a message of odd length: Arrow aligns what it writes, and readers look for each frame's own length."""
    tables = [pa.record_batch({"text": ["a", "bcd"]}), pa.record_batch({"v": [1.5]})]
    messages = [(bytes([number]) * 16, rows) for number, rows in enumerate(tables, start=1)]

    frames = framed_streams(messages)

    arrow = ArrowType()
    singly = [
        FixedFraming().frame(arrow.encode(ArrowMessage(rows, uuid))) for uuid, rows in messages
    ]
    assert bytes(frames) == b"".join(singly)
