"""Spans of one shard's transactions, from the first delivery to the last acknowledgement.

A transaction is linked to the messages that it consumes, and is a part of the trace of the first. What it publishes
carries its own context, so the trace goes on with the next shard. While one transaction is committed and acknowledged,
the next one runs, so up to two spans are open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broadsheet.consumer.shard.transaction_events import RecordTxn
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.trace_contexts import traceparents_in
from broadsheet.serving.tracing import Tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

LINKS_MAX: Final = 32
"""Most messages that a transaction is linked to."""


@dataclass(slots=True)
class _Transaction:
    span: Span | None = None
    """None before its first delivery."""
    linked: set[tuple[int, int]] = field(default_factory=set)
    """Trace and span of each link."""


class TransactionTraces:
    """The open transactions of one attempt, oldest first."""

    def __init__(self, tracing: Tracing, shard: str) -> None:
        self._tracing = tracing
        self._shard = shard
        # Appended on the worker thread, removed on the event loop.
        self._open: deque[_Transaction] = deque()

    def begin(self) -> None:
        """Begin another transaction; its span starts with its first delivery."""
        self._open.append(_Transaction())

    @contextmanager
    def consuming(self, batch: MessageBatch) -> Iterator[None]:
        """Make the newest transaction's span current while it consumes a batch."""
        newest = self._open[-1]
        found = self._contexts(newest, batch)
        if newest.span is None:
            newest.span = self._tracing.start_transaction(self._shard, found)
        else:
            for each in found:
                self._tracing.link(newest.span, each)
        with self._tracing.attached(newest.span):
            yield

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Make the span of the transaction that runs the current one."""
        with self._tracing.attached(self._open[-1].span if self._open else None):
            yield

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Make the span of the transaction that is committed and acknowledged the current one."""
        with self._tracing.attached(self._open[0].span if self._open else None):
            yield

    @contextmanager
    def completing(self, record: RecordTxn) -> Iterator[None]:
        """Make the span of a complete transaction the current one, then end it."""
        span = self._open.popleft().span if self._open else None
        with self._tracing.attached(span):
            yield
        if span is not None:
            span.set_attribute("messaging.batch.message_count", record.messages)
            span.set_attribute("broadsheet.message_bytes", record.message_bytes)
            span.end()

    def abandon(self, cause: BaseException) -> None:
        """End all spans, because their transactions will not complete here. Idempotent."""
        while self._open:
            span = self._open.popleft().span
            if span is not None:
                self._tracing.fail(span, cause)
                span.end()

    def _contexts(self, transaction: _Transaction, batch: MessageBatch) -> list[SpanContext]:
        """Return the contexts to link that the transaction has not met yet."""
        found: list[SpanContext] = []
        # A span that is not recorded needs no links.
        if transaction.span is not None and not transaction.span.is_recording():
            return found
        for text in traceparents_in(batch):
            if len(transaction.linked) >= LINKS_MAX:
                break
            context = self._tracing.sampled_context(text)
            if context is None or (context.trace_id, context.span_id) in transaction.linked:
                continue
            transaction.linked.add((context.trace_id, context.span_id))
            found.append(context)
        return found
