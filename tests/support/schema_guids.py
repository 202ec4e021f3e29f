"""A Schema Registry whose schemas have GUIDs, as Confluent's since release 8, before a real one without."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from uuid import NAMESPACE_OID, uuid5

import httpx2

_GUIDS = "/schemas/guids/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: str
    asked: list[str]

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        self.asked.append(self.path)
        if not path.path.startswith(_GUIDS):
            self._forward("GET")
            return
        schema = self._schema_of(path.path.removeprefix(_GUIDS))
        if schema is None:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})
            return
        # Of protobuf the client asks for another format, which is not used.
        assert "format" not in parse_qs(path.query), self.path
        self._answer(200, schema)

    def do_POST(self) -> None:
        self._forward("POST")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base class's
        """Print nothing."""

    def _schema_of(self, guid: str) -> dict[str, object] | None:
        for number in range(1, 200):
            if guid_of(number) == guid:
                found = httpx2.get(f"{self.upstream}/schemas/ids/{number}", timeout=10)
                return {**found.json(), "guid": guid} if found.is_success else None
        return None

    def _forward(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sent = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        found = httpx2.request(
            method, self.upstream + self.path, content=body, headers=sent, timeout=30
        )
        try:
            content = found.json()
        except ValueError:
            content = {}  # Of a path that it does not have.
        if found.is_success and isinstance(content, dict) and "id" in content:
            content["guid"] = guid_of(content["id"])
        self._answer(found.status_code, content)

    def _answer(self, status: int, content: object) -> None:
        encoded = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)


def guid_of(number: int) -> str:
    """Return the GUID of a schema."""
    return str(uuid5(NAMESPACE_OID, str(number)))


@contextmanager
def with_guids(url: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a registry like the one at `url`, whose schemas have GUIDs, and what it is asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"upstream": url, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
