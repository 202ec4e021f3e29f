"""The trace contexts that messages carry: found in batches without a look at each message.

    JSON                            `_meta.traceparent`, beside the UUID
    Arrow                           `traceparent` in the metadata of the message's schema
    Avro                            `traceparent` in the metadata of the message's file
    CSV, protobuf, other formats    none: they have no room beside the application's own fields

Source: W3C Trace Context (the text form of a context).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol, runtime_checkable

from broadsheet.journals.content.message_type import MessageRun
from broadsheet.journals.content.registry import registered
from broadsheet.serving.tracing import TRACEPARENT

LOOKS_MAX: Final = 64
"""Most messages of a batch that are looked into."""
_HEAD_BYTES: Final = 64 << 10
"""Of a message whose metadata is at its beginning."""
_CONTEXT: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@runtime_checkable
class CarriesTrace(Protocol):
    """A `MessageType` whose messages have room for a trace context."""

    # `Any`: the application's own message class.
    def set_traceparent(self, message: Any, traceparent: str) -> None:
        """Write a context into a message that has its UUID."""
        ...


def traceparents_in(run: MessageRun) -> Iterator[str]:
    """Yield the contexts of some messages as they stand there, which may be malformed: of few, if many have one.

    Messages without any cost one search of their bytes.
    """
    content = registered(run.message_type.content_type)
    return iter(()) if content is None else content.traceparents(run.payloads)


def traceparents_in_heads(payloads: Sequence[bytes]) -> Iterator[str]:
    """Yield the contexts of messages that keep theirs as `traceparent` in metadata at their beginning."""
    for payload in islice(payloads, LOOKS_MAX):
        head = payload[:_HEAD_BYTES]
        found = _CONTEXT.search(head) if TRACEPARENT.encode() in head else None
        if found is not None:
            yield found[0].decode()
