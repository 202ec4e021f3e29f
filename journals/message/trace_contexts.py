"""The trace contexts that the messages of a batch carry; the record of each content type says where."""

from __future__ import annotations

from collections.abc import Iterator

from broadsheet.journals.content.message_type import MessageRun
from broadsheet.journals.content.registry import registered


def traceparents_in(run: MessageRun) -> Iterator[str]:
    """Yield the contexts of some messages as written there, which may be malformed: of few, if many have one.

    Messages without any cost one search of their bytes.
    """
    content = registered(run.message_type.content_type)
    return iter(()) if content is None else content.traceparents(run.payloads)
