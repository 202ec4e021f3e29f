"""The page of metrics: rendered by one thread, at most once a second, because that takes long for many shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from broadsheet.serving.metrics import AllMetrics

SCRAPES_MAX: Final = 8
"""Answers with metrics that are being sent. Each may be of another second, and has megabytes for many shards."""
CHUNK_BYTES: Final = 64 << 10
"""Bytes of metrics that are given to a connection before it must take them."""
RENDERING_SECONDS: Final = 1.0
"""Metrics that are no older than this are sent again."""


class MetricsPage:
    """Answers with a registry's metrics, and those of the default registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._renderings = {each: _Rendering(registry, as_open=each) for each in (False, True)}
        self._sending: dict[asyncio.Transport | None, None] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a scrape; of too many, the slowest is cut off."""
        # The library's own choice reflects the header's version; these two are what Prometheus asks for.
        as_open = "application/openmetrics-text" in request.headers.get("Accept", "")
        sending = self._sending
        if len(sending) >= SCRAPES_MAX:
            # The first is the slowest: others of its time have been sent.
            slowest = next(iter(sending))
            del sending[slowest]
            if slowest is not None:
                slowest.abort()
        transport = request.transport
        sending[transport] = None
        try:
            body = memoryview(await self._renderings[as_open].read())
            kind = openmetrics.CONTENT_TYPE_LATEST if as_open else _PLAIN
            answer = web.StreamResponse(headers={"Content-Type": kind})
            answer.content_length = len(body)
            await answer.prepare(request)
            # In pieces, because a connection keeps what it was given until its client takes it.
            for begin in range(0, len(body), CHUNK_BYTES):
                await answer.write(bytes(body[begin : begin + CHUNK_BYTES]))
            return answer
        finally:
            sending.pop(transport, None)


_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
_RENDERER: Final = ThreadPoolExecutor(1, thread_name_prefix="metrics")
"""One thread of its own: scrapes cannot take more than one processor, nor wait behind others' blocking work."""


class _Rendering:
    """The text of metrics, made once for all that ask at about the same time."""

    def __init__(self, registry: CollectorRegistry, *, as_open: bool) -> None:
        self._metrics = AllMetrics(registry)
        self._generate: Callable[[Any], bytes] = (
            openmetrics.generate_latest if as_open else generate_latest
        )
        self._made_at = float("-inf")
        self._making: asyncio.Future[bytes] | None = None

    async def read(self) -> bytes:
        """Return the text, made at most `RENDERING_SECONDS` ago."""
        making = self._making
        if making is None or (making.done() and monotonic() - self._made_at > RENDERING_SECONDS):
            making = self._making = asyncio.get_running_loop().run_in_executor(
                _RENDERER, self._render
            )
        # Shielded, because others wait for the same text when one of them goes away.
        return await asyncio.shield(making)

    def _render(self) -> bytes:
        self._made_at = monotonic()
        return self._generate(self._metrics)
