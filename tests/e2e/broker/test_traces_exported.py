"""Traces of a process of its own arrive at a collector that speaks OTLP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.runtime.errors import ExtraMissingError
from broadsheet.serving.tracing import traces_exported
from broadsheet.wire.journal_pb2 import AppendRequest
from tests.support.broker import RPC_TIMEOUT_SECONDS, apply_specs, broker_stub, journal_spec
from tests.support.otlp_collector import collecting

pytestmark = pytest.mark.e2e

TRACE, SPAN = "1" * 32, "2" * 16
JOURNAL = "a/journal"


@asynccontextmanager
async def _running(directory: Path) -> AsyncIterator[EmbeddedBrokerProcess]:
    """Run a broker in a process of its own, while this one's loop goes on."""
    broker = EmbeddedBrokerProcess(directory, arguments=["--traces"])
    await asyncio.to_thread(broker.start)
    try:
        yield broker
    finally:
        await asyncio.to_thread(broker.stop)


async def test_broker_exports_to_the_collector_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in memory at the end of the process is exported, too."""
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        # Longer than the test: the spans come from the flush at the end.
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
        async with _running(tmp_path / "b") as broker, broker_stub(broker.address) as stub:
            await apply_specs(stub, journal_spec(JOURNAL))
            metadata = (("traceparent", f"00-{TRACE}-{SPAN}-01"),)
            call = stub.Append(metadata=metadata, timeout=RPC_TIMEOUT_SECONDS)
            for each in (
                AppendRequest(journal=JOURNAL),
                AppendRequest(content=b"a"),
                AppendRequest(),
            ):
                await call.write(each)
            await call.done_writing()
            await call

    traced = [found for found in collector.spans() if found[1].trace_id == bytes.fromhex(TRACE)]
    ((service, span),) = traced
    assert service == "broadsheet-broker"
    assert (span.name, span.kind) == ("protocol.Journal/Append", Span.SPAN_KIND_SERVER)
    assert span.parent_span_id == bytes.fromhex(SPAN)
    attributes = {each.key: each.value.string_value for each in span.attributes}
    assert attributes["messaging.destination.name"] == JOURNAL


def test_missing_library_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Traces are an extra, and a process that was told to export them must not seem to."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with (
        pytest.raises(ExtraMissingError, match=r"\(the extra `otel`\): pip install "),
        traces_exported("a-service", wanted=True),
    ):
        pass
