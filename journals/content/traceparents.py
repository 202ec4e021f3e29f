"""The search for trace contexts in messages that keep theirs in metadata at their beginning.

Source: W3C Trace Context (the text form of a context).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from broadsheet.serving.tracing import TRACEPARENT

LOOKS_MAX: Final = 64
"""Most messages of a batch that are looked into."""
_HEAD_BYTES: Final = 64 << 10
"""Of a message whose metadata is at its beginning."""
_CONTEXT: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def traceparents_in_heads(payloads: Sequence[bytes]) -> Iterator[str]:
    """Yield the contexts of messages that keep theirs as `traceparent` in metadata at their beginning."""
    for payload in islice(payloads, LOOKS_MAX):
        head = payload[:_HEAD_BYTES]
        found = _CONTEXT.search(head) if TRACEPARENT.encode() in head else None
        if found is not None:
            yield found[0].decode()
