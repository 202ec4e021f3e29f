"""Traces: one trace follows a call over two members, and a message from its append to what is derived from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from opentelemetry.util._once import Once
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from broadsheet.journals.client import JournalClient
from broadsheet.wire.shard_pb2 import StatRequest, Status
from broadsheet.wire.shard_pb2_grpc import ShardStub
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd

STAT = "consumer.Shard/Stat"
APPEND = "protocol.Journal/Append"
TRANSACTION = "Transaction"
SOURCE = "test/source"


@pytest.fixture(autouse=True)
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Turn tracing on for what is made during the test, and yield the spans that have ended."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A process sets its provider once in its life; other tests of this process must have none.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


def _of(spans: InMemorySpanExporter, trace_id: int) -> list[ReadableSpan]:
    return [each for each in spans.get_finished_spans() if each.context.trace_id == trace_id]


def _named(
    spans: list[ReadableSpan], name: str, kind: SpanKind | None = None
) -> list[ReadableSpan]:
    return [each for each in spans if each.name == name and kind in (None, each.kind)]


def _chain(spans: list[ReadableSpan], last: ReadableSpan) -> list[tuple[str, SpanKind]]:
    """Return name and kind of a span and all that it is within, from the outermost on."""
    by_id = {each.context.span_id: each for each in spans}
    chain = [last]
    while (parent := chain[0].parent) is not None and parent.span_id in by_id:
        chain.insert(0, by_id[parent.span_id])
    return [(each.name, each.kind) for each in chain]


async def test_one_trace_from_a_client_through_a_proxy_to_the_primary(
    cluster: Cluster, spans: InMemorySpanExporter
) -> None:
    """The member that is asked is not the primary, so the call passes two members; each does its part of the trace. The
    primary's histogram names the trace to those who scrape OpenMetrics.
    """
    async with (
        cluster.member("one", admin_port=0) as one,
        cluster.member("two", admin_port=0) as two,
    ):
        services = {"member-one": one, "member-two": two}
        async with client_of(one) as client:
            await client.apply(upserts(shard("shard-1", SOURCE)))
            primary = (await wait_for_primaries(client, "shard-1"))["shard-1"]
        (other,) = services.keys() - {primary}
        async with client_of(services[other]) as client:
            # Each member follows etcd by itself, so the other one may not know the shard yet.
            await wait_for_primaries(client, "shard-1")
            spans.clear()
            with trace.get_tracer("test").start_as_current_span("test") as own:
                await client.stat("shard-1")
        texts = [await _metrics(services[name].admin_address) for name in (primary, other)]

    found = _of(spans, own.get_span_context().trace_id)
    resolved = _named(found, "Resolve")
    last = next(each for each in resolved if len(_chain(found, each)) > 4)
    assert _chain(found, last) == [
        ("test", SpanKind.INTERNAL),
        (STAT, SpanKind.CLIENT),
        (STAT, SpanKind.SERVER),
        (STAT, SpanKind.CLIENT),
        (STAT, SpanKind.SERVER),
        ("Resolve", SpanKind.INTERNAL),
    ]
    assert len(found) == 7  # The proxy resolves, too.
    assert {each.attributes["broadsheet.shard"] for each in resolved if each.attributes} == {
        "shard-1"
    }
    trace_id = f"{own.get_span_context().trace_id:032x}"
    for text in texts:
        assert trace_id in _exemplars(text, "grpc_server_handling_seconds")


async def test_a_message_is_followed_to_what_is_derived_from_it(
    cluster: Cluster, journals: JournalClient, spans: InMemorySpanExporter
) -> None:
    """The transaction is a part of the trace of what it consumes, and what it publishes carries the transaction's own
    context. The broker shows both appends.
    """
    async with cluster.member("one", admin_port=0) as one, client_of(one) as client:
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        producer = Producer(journals)
        tracer = trace.get_tracer("test")
        end = await producer.publish(SOURCE, ["untraced"])
        # In one transaction with it, the traced message would be a link of a trace that the transaction began.
        await client.wait_read_through("shard-1", {SOURCE: end}, timeout_seconds=30)
        with tracer.start_as_current_span("test") as own:
            end = await producer.publish(SOURCE, ["traced"])
        await client.wait_read_through("shard-1", {SOURCE: end}, timeout_seconds=30)
        trace_id = own.get_span_context().trace_id
        (transaction,) = await eventually(lambda: _some(_named(_of(spans, trace_id), TRANSACTION)))
        text = await _metrics(one.admin_address)
        messages = {
            each["key"]: each["_meta"] for each in await committed(journals, cluster.output)
        }

    own_context = own.get_span_context()
    assert transaction.parent is not None
    assert transaction.parent.span_id == own_context.span_id
    assert [each.context.span_id for each in transaction.links] == [own_context.span_id]
    assert transaction.attributes is not None
    assert transaction.attributes["broadsheet.shard"] == "shard-1"
    context = transaction.context
    assert messages["traced"]["traceparent"] == f"00-{trace_id:032x}-{context.span_id:016x}-01"
    found = _of(spans, trace_id)
    appended = {
        each.attributes["messaging.destination.name"]: _chain(found, each)
        for each in _named(found, APPEND, SpanKind.SERVER)
        if each.attributes
    }
    test, client_side = ("test", SpanKind.INTERNAL), (APPEND, SpanKind.CLIENT)
    server_side = (APPEND, SpanKind.SERVER)
    assert appended[SOURCE] == [test, client_side, server_side]
    derived = [test, (TRANSACTION, SpanKind.CONSUMER), client_side, server_side]
    assert appended[cluster.output] == derived
    assert f"{trace_id:032x}" in _exemplars(text, "broadsheet_shard_transaction_seconds")


def _some(found: list[ReadableSpan]) -> list[ReadableSpan]:
    assert found
    return found


async def _metrics(address: str) -> str:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{address}/metrics", headers=accept) as answer,
    ):
        return await answer.text()


def _exemplars(text: str, name: str) -> set[str]:
    """Return the traces that a histogram names."""
    return {
        sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        if family.name == name
        for sample in family.samples
        if sample.exemplar
    }


@pytest.mark.parametrize(
    "metadata",
    [
        (("traceparent", "00-" + "z" * 32 + "-" + "1" * 16 + "-01"),),
        (("traceparent", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"),),
        (("traceparent", "00-" + "1" * 4000 + "-01"),),
        (("traceparent", ""), ("tracestate", "a=" + "b" * 2000)),
        (("baggage", "secret=1"), ("tracestate", "a=b")),
    ],
    ids=["no digits", "no trace", "long", "empty", "without"],
)
async def test_malformed_context_of_a_stranger_is_ignored(
    cluster: Cluster,
    journals: JournalClient,
    spans: InMemorySpanExporter,
    metadata: tuple[tuple[str, str], ...],
) -> None:
    """Anybody can send anything: the call is answered, and its span begins a trace of its own."""
    del journals
    async with cluster.member("one") as one:
        spans.clear()
        async with grpc.aio.insecure_channel(one.address.removeprefix("http://")) as channel:
            stub: Any = ShardStub(channel)
            answer = await stub.Stat(StatRequest(shard="none"), metadata=metadata)

    assert answer.status == Status.SHARD_NOT_FOUND
    (served,) = _named(list(spans.get_finished_spans()), STAT)
    assert served.parent is None
    assert not served.context.trace_state
