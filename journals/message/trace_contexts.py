"""The trace contexts that messages carry: found in batches without a look at each message.

    JSON                            `_meta.traceparent`, beside the UUID
    Arrow                           `traceparent` in the metadata of the message's schema
    CSV, protobuf, other formats    none: they have no room beside the application's own fields

Source: W3C Trace Context (the text form of a context).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import numpy as np

from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.framing import ARROW_STREAM, NDJSON, Payloads
from broadsheet.serving.tracing import TRACEPARENT

LOOKS_MAX: Final = 64
"""Most messages of a batch that are looked into."""
_KEY: Final = f'"{TRACEPARENT}"'.encode()
_ARROW_HEAD_BYTES: Final = 64 << 10
"""Of an Arrow message: its schema is at the beginning."""
_ARROW_CONTEXT: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@runtime_checkable
class CarriesTrace(Protocol):
    """A `MessageType` whose messages have room for a trace context."""

    # `Any`: the application's own message class.
    def set_traceparent(self, message: Any, traceparent: str) -> None:
        """Write a context into a message that has its UUID."""
        ...


class _Meta(msgspec.Struct, gc=False):
    traceparent: str = ""


class _Probe(msgspec.Struct, gc=False):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


_probe = msgspec.json.Decoder(_Probe).decode


def traceparents_in(batch: MessageBatch) -> Iterator[str]:
    """Yield the contexts of a batch's messages as they stand there, which may be malformed: of few, if many have one.

    A batch without any costs one search of its bytes.
    """
    content_type = batch.message_type.content_type
    if content_type == NDJSON:
        for line in _lines_with_key(batch):
            try:
                yield _probe(line).meta.traceparent
            except (msgspec.MsgspecError, RecursionError):
                continue  # The key is elsewhere in it.
    elif content_type == ARROW_STREAM:
        for payload in islice(batch.payloads, LOOKS_MAX):
            head = payload[:_ARROW_HEAD_BYTES]
            found = _ARROW_CONTEXT.search(head) if TRACEPARENT.encode() in head else None
            if found is not None:
                yield found[0].decode()


def _lines_with_key(batch: MessageBatch) -> Iterator[bytes]:
    payloads = batch.payloads
    if not isinstance(payloads, Payloads):
        yield from (each for each in islice(payloads, LOOKS_MAX) if _KEY in each)
        return
    if not len(payloads):
        return
    buffer, at, end = payloads.buffer, int(payloads.begins[0]), int(payloads.ends[-1])
    for _ in range(LOOKS_MAX):
        at = buffer.find(_KEY, at, end)
        if at < 0:
            return
        index = int(np.searchsorted(payloads.begins, at, side="right")) - 1
        stop = int(payloads.ends[index])
        # Else it belongs to a message between these, which is not one of the batch.
        if at < stop:
            yield payloads[index]
        at = max(at + len(_KEY), stop)
