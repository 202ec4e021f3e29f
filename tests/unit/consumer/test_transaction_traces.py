"""Spans of transactions: how many messages one is linked to."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from broadsheet.consumer.shard.transaction_traces import LINKS_MAX, TransactionTraces
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.framing import Payloads
from broadsheet.serving.tracing import Tracing


def _batch(first: int, count: int) -> MessageBatch:
    """Return messages of as many traces, numbered from `first`."""
    lines = [
        b'{"_meta":{"traceparent":"00-%032x-%016x-01"}}' % (number, number)
        for number in range(first, first + count)
    ]
    numbers = list(range(count))
    ends = [number + 1 for number in numbers]
    return MessageBatch(
        "a/journal", numbers, ends, numbers, numbers, [0] * count, Payloads.of(lines), JsonType()
    )


def _consumed(*batches: MessageBatch) -> ReadableSpan:
    """Return the span of a transaction that consumed the batches."""
    traces = TransactionTraces(Tracing(TracerProvider(shutdown_on_exit=False)), "shard-1")
    traces.begin()
    span: object = None
    for each in batches:
        with traces.consuming(each):
            span = trace.get_current_span()
    assert isinstance(span, ReadableSpan)
    return span


def test_transaction_is_linked_to_each_message_once() -> None:
    """Over several batches; the first message is its parent."""
    span = _consumed(_batch(1, 2), _batch(2, 2))

    assert [link.context.trace_id for link in span.links] == [1, 2, 3]
    assert span.parent is not None
    assert span.parent.trace_id == 1


def test_links_of_a_transaction_are_bounded() -> None:
    """A transaction of many traced messages names the first of them, however they come in batches."""
    batches = [_batch(first, 8) for first in range(1, 8 * LINKS_MAX, 8)]

    assert [link.context.trace_id for link in _consumed(*batches).links] == [
        *range(1, LINKS_MAX + 1)
    ]
