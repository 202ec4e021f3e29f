"""JSON messages, one a line, with their UUID at `_meta.uuid` and their trace context at `_meta.traceparent`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from broadsheet.journals.content.message_type import MessageType
from broadsheet.journals.content.registry import ContentType
from broadsheet.journals.message.framing import NDJSON, LineFraming, Payloads
from broadsheet.journals.message.json_tables import json_table
from broadsheet.journals.message.trace_contexts import LOOKS_MAX
from broadsheet.journals.message.types import JsonStructType, JsonType
from broadsheet.serving.tracing import TRACEPARENT
from broadsheet.wire.journal_pb2 import LabelSet

_KEY: Final = f'"{TRACEPARENT}"'.encode()


class _Meta(msgspec.Struct, gc=False):
    traceparent: str = ""


class _Probe(msgspec.Struct, gc=False):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


_probe = msgspec.json.Decoder(_Probe).decode


def _message_type(labels: LabelSet, message_class: type[Any] | None) -> MessageType:
    del labels
    return JsonType() if message_class is None else JsonStructType(message_class)


def _made_of(message_type: MessageType, values: Sequence[Any]) -> Any:
    (value,) = values
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {msgspec.json.encode(value)[:40].decode()}")
    if isinstance(message_type, JsonStructType):
        return message_type.decode(msgspec.json.encode(value))
    if not isinstance(value.get("_meta", {}), dict):
        raise ValueError("_meta: expected an object, in which the UUID is written")
    return value


def _traceparents(payloads: Sequence[bytes]) -> Iterator[str]:
    for line in _lines_with_key(payloads):
        try:
            yield _probe(line).meta.traceparent
        except (msgspec.MsgspecError, RecursionError):
            continue  # The key is elsewhere in it.


def _lines_with_key(payloads: Sequence[bytes]) -> Iterator[bytes]:
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


CONTENT: Final = ContentType(
    name=NDJSON,
    framing=LineFraming(),
    message_type=_message_type,
    shown=lambda message: [message],
    is_text=True,
    made_of=_made_of,
    table=json_table,
    traceparents=_traceparents,
)
