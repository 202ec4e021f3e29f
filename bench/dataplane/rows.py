"""Rows as journals hold them, made by NumPy: as many as a benchmark needs, in less time than anything reads them.

Row n has key `key-<n * 7919 % 1000>` and value `n % 9 + 1`. As a JSON line it has 100 bytes:

    {"_meta":{"uuid":"…"},"k":"key-123","v":1,"s":"fifteen letters"}

Rows come in transactions: some rows, then the acknowledgement that commits them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broadsheet.journals.content.arrow import ARROW_STREAM, ArrowMessage, ArrowType
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.uuid import (
    CLOCK_UNITS_PER_MESSAGE,
    Flags,
    build_uuid,
    format_uuid,
    new_producer_id,
)

KEYS = 1_000
STRIDE = 7919
"""Rows go round the keys in it, so that a run of any length touches most of them."""
VALUES = 9
MESSAGE_BYTES = 100
TXN_ROWS = 10_000
"""Rows that one acknowledgement commits; one Arrow message."""
CLOCK_BEGIN = 1 << 58
"""Of preloaded rows; nothing compares it with wall time."""
_TEMPLATE = (
    b'{"_meta":{"uuid":"00000000-0000-1000-0000-000000000000"},"k":"key-000","v":0,"s":"'
    b'fifteen letters"}\n'
)
assert len(_TEMPLATE) == MESSAGE_BYTES
_UUID_AT = _TEMPLATE.index(b"00000000-")
_KEY_AT = _TEMPLATE.index(b"key-") + len(b"key-")
_VALUE_AT = _TEMPLATE.index(b'"v":') + len(b'"v":')
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
# Positions in the text of a UUID, and the shift of the clock's digit that is there.
_DIGITS = [(place, 32 - 4 * place) for place in range(8)]
_DIGITS += [(9 + place, 48 - 4 * place) for place in range(4)]
_DIGITS += [(15 + place, 60 - 4 * place) for place in range(3)]

Lines = npt.NDArray[np.uint8]
"""Shape (rows, MESSAGE_BYTES)."""


class RowWriter:
    """One producer's rows, from row 0 on."""

    def __init__(self, clock: int = CLOCK_BEGIN) -> None:
        """Begin as a new producer."""
        self._producer = new_producer_id()
        self._clock = clock
        self._next = 0

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self._next

    def json_lines(self, rows: int, flags: int = Flags.CONTINUE_TXN, *, clock: int = 0) -> Lines:
        """Return the next rows as lines.

        Args:
            rows: How many.
            flags: Of each message.
            clock: The clock is at least this.
        """
        numbers = np.arange(self._next, self._next + rows)
        clocks = self._clocks(rows, clock)
        lines = np.tile(np.frombuffer(_TEMPLATE, np.uint8), (rows, 1))
        uuids = format_uuid(build_uuid(self._producer, 0, flags)).encode()
        lines[:, _UUID_AT : _UUID_AT + len(uuids)] = np.frombuffer(uuids, np.uint8)
        for place, shift in _DIGITS:
            lines[:, _UUID_AT + place] = _HEX[(clocks >> shift) & 0xF]
        keys = numbers * STRIDE % KEYS
        for place, power in enumerate((100, 10, 1)):
            lines[:, _KEY_AT + place] = ord("0") + keys // power % 10
        lines[:, _VALUE_AT] = ord("1") + numbers % VALUES
        self._next += rows
        return lines

    def json_transaction(self, rows: int = TXN_ROWS) -> bytes:
        """Return the next rows as lines, and the line that commits them."""
        return self.json_lines(rows).tobytes() + self.json_acknowledgement()

    def json_acknowledgement(self) -> bytes:
        """Return the line that commits all rows so far."""
        uuid = build_uuid(self._producer, self._tick(), Flags.ACK_TXN)
        return b'{"_meta":{"uuid":"%s"}}\n' % format_uuid(uuid).encode()

    def arrow_transaction(self, rows: int = TXN_ROWS) -> bytes:
        """Return the next rows as one Arrow message, and the message that commits it."""
        batch = self.record_batch(rows)
        message = build_uuid(self._producer, self._tick(), Flags.CONTINUE_TXN)
        acknowledgement = build_uuid(self._producer, self._tick(), Flags.ACK_TXN)
        frame, encode = FixedFraming().frame, ArrowType().encode
        return frame(encode(ArrowMessage(batch, message))) + frame(acknowledgement)

    def record_batch(self, rows: int) -> pa.RecordBatch:
        """Return the next rows as columns `k` and `v`."""
        numbers = np.arange(self._next, self._next + rows)
        self._next += rows
        keys = pa.array(_KEYS).take(pa.array(numbers * STRIDE % KEYS))
        return pa.record_batch({"k": keys, "v": pa.array(numbers % VALUES + 1)})

    def _clocks(self, rows: int, least: int) -> npt.NDArray[np.int64]:
        begin = max(self._clock + CLOCK_UNITS_PER_MESSAGE, least & ~0xF)
        self._clock = begin + (rows - 1) * CLOCK_UNITS_PER_MESSAGE
        return begin + np.arange(rows, dtype=np.int64) * CLOCK_UNITS_PER_MESSAGE

    def _tick(self) -> int:
        self._clock += CLOCK_UNITS_PER_MESSAGE
        return self._clock


_KEYS = [f"key-{number:03d}" for number in range(KEYS)]


@dataclass(frozen=True, slots=True)
class Load:
    """Rows of one shard, as they wait in its journal."""

    api: str
    """`message`, `batch` or `arrow`."""
    rows: int

    @property
    def content_type(self) -> str:
        """Of the journal."""
        return ARROW_STREAM if self.api == "arrow" else NDJSON

    def contents(self) -> Iterator[bytes]:
        """Yield transactions, several an append."""
        writer = RowWriter()
        make = writer.arrow_transaction if self.api == "arrow" else writer.json_transaction
        pending: list[bytes] = []
        while writer.rows < self.rows:
            pending.append(make(min(TXN_ROWS, self.rows - writer.rows)))
            if sum(map(len, pending)) >= _APPEND_BYTES:
                yield b"".join(pending)
                pending = []
        if pending:
            yield b"".join(pending)


_APPEND_BYTES = 8 << 20


def expected_sums(rows: int) -> dict[str, tuple[int, int]]:
    """Return (count, sum) by key of rows 0 to `rows`."""
    rounds, rest = divmod(rows, KEYS * VALUES)  # After so many, keys and values come again.
    whole, part = _sums_of(KEYS * VALUES), _sums_of(rest)
    found = {
        key: (rounds * n + part[key][0], rounds * total + part[key][1])
        for key, (n, total) in whole.items()
    }
    return {key: sums for key, sums in found.items() if sums[0] > 0}


def _sums_of(rows: int) -> dict[str, tuple[int, int]]:
    numbers = np.arange(rows)
    keys = numbers * STRIDE % KEYS
    counts = np.bincount(keys, minlength=KEYS)
    sums = np.bincount(keys, weights=numbers % VALUES + 1, minlength=KEYS)
    return {key: (int(n), int(total)) for key, n, total in zip(_KEYS, counts, sums, strict=True)}
