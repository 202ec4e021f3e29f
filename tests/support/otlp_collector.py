"""A collector of traces: a server of OTLP over HTTP, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class OtlpCollector:
    """Keeps what it is sent."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._lock = threading.Lock()
        self._exported = ExportTraceServiceRequest()

    def collect(self, content: bytes) -> None:
        """Add an exporter's request."""
        with self._lock:
            self._exported.MergeFromString(content)

    def spans(self) -> list[tuple[str, Span]]:
        """Return every span so far, after the name of the service that exported it."""
        with self._lock:
            return [
                (_service(resource), span)
                for resource in self._exported.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]


@contextmanager
def collecting() -> Iterator[OtlpCollector]:
    """Run a collector while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces", self.path
            collector.collect(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = OtlpCollector(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def _service(spans: ResourceSpans) -> str:
    found: str = next(
        each.value.string_value for each in spans.resource.attributes if each.key == "service.name"
    )
    return found
