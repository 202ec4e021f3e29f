"""MB/s into and out of a durable broker, by length of appends and number of writers, beside bare gRPC streams.

append_mb_per_s     each writer appends chunks to its own journal, one after the other, each durable when answered;
                    the bare stream throws the same messages away
read_mb_per_s       one reader reads what was appended; the bare stream pours messages of the same length out of memory
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import grpc.aio

from bench.bare_server import OPTIONS, bare_server
from bench.journal_specs import journal_change
from bench.report import alternate, emit_pair
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import BULK_APPEND_BYTES_MAX, BULK_CHUNK_BYTES, TransportPolicy
from broadsheet.runtime.event_loop import new_event_loop
from broadsheet.runtime.interpreter import serve_only
from broadsheet.runtime.task_group import TaskGroup

MEGABYTE = 1_000_000
CHUNKS_KB = (64, 1024)
WRITERS = (1, 8)
POLICY = TransportPolicy(chunk_bytes=BULK_CHUNK_BYTES, whole_bytes_max=BULK_APPEND_BYTES_MAX)
"""As of a member."""
LIMIT = "bare gRPC stream of the same bytes"


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """The size of the measurement."""

    bytes: int = 512 << 20
    """Of one measurement, all writers together."""
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class _Sizes:
    chunk_bytes: int
    writers: int
    chunks: int
    """Of each writer."""

    @property
    def megabytes(self) -> float:
        return self.chunk_bytes * self.chunks * self.writers / MEGABYTE

    def journal(self, writer: int) -> str:
        """Return the journal that a writer appends to."""
        return f"dataplane/bytes-{self.chunk_bytes}-{self.writers}/{writer}"


Measure: TypeAlias = Callable[[str, _Sizes], Coroutine[object, object, float]]
"""Returns MB/s to or from a server's address."""


def run(bench: str, plan: BrokerPlan) -> None:
    """Measure and print `append_mb_per_s` and `read_mb_per_s`."""
    serve_only()  # As a member does; otherwise the client's buffers cost more than the stream.
    with (
        tempfile.TemporaryDirectory(prefix="dataplane-") as name,
        EmbeddedBrokerProcess(Path(name) / "broker") as broker,
        bare_server(Path(name)) as bare,
        asyncio.Runner(
            loop_factory=new_event_loop
        ) as runner,  # One loop for all: gRPC does not like loops that come and go.
    ):
        for chunk_kb in CHUNKS_KB:
            for writers in WRITERS:
                chunk_bytes = chunk_kb << 10
                sizes = _Sizes(chunk_bytes, writers, max(1, plan.bytes // chunk_bytes // writers))

                def rates(ours: Measure, limit: Measure, sizes: _Sizes = sizes) -> Sequence[float]:
                    return alternate(
                        lambda: runner.run(ours(broker.address, sizes)),
                        lambda: runner.run(limit(bare, sizes)),
                        plan.rounds,
                    )

                _emit(bench, "append_mb_per_s", rates(_append, _swallow), sizes)
                if writers == 1:
                    _emit(bench, "read_mb_per_s", rates(_read, _pour), sizes)


def _emit(bench: str, figure: str, medians: Sequence[float], sizes: _Sizes) -> None:
    params = {"chunk_kb": sizes.chunk_bytes >> 10, "writers": sizes.writers}
    emit_pair(bench, figure, medians, "MB/s", limit=LIMIT, **params)


async def _append(address: str, sizes: _Sizes) -> float:
    content = bytes(sizes.chunk_bytes)
    async with JournalClient(address, policy=POLICY) as client:
        journals = [sizes.journal(writer) for writer in range(sizes.writers)]
        await client.apply([journal_change(journal) for journal in journals])

        async def write(writer: int) -> None:
            for _ in range(sizes.chunks):
                await client.append(journals[writer], content)

        return await _timed(write, sizes)


async def _swallow(address: str, sizes: _Sizes) -> float:
    chunk = bytes(sizes.chunk_bytes)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(sizes.chunks):
            yield chunk

    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(
            "/bare/swallow"
        )

        async def stream(writer: int) -> None:
            del writer
            await call(chunks())

        return await _timed(stream, sizes)


async def _read(address: str, sizes: _Sizes) -> float:
    end = sizes.chunk_bytes * sizes.chunks
    received = 0
    async with JournalClient(address) as client:
        began = time.perf_counter()
        async for span in client.reader(sizes.journal(0), end_offset=end):
            received += len(span.content)
        seconds = time.perf_counter() - began
    assert received == end, f"read {received} of {end} bytes"
    return end / MEGABYTE / seconds


async def _pour(address: str, sizes: _Sizes) -> float:
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        pour: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/bare/pour")
        began = time.perf_counter()
        async for _ in pour(b"%d %d" % (sizes.chunk_bytes, sizes.chunks)):
            pass
        return sizes.megabytes / (time.perf_counter() - began)


async def _timed(write: Callable[[int], Coroutine[object, object, None]], sizes: _Sizes) -> float:
    """Return MB/s of all writers together."""
    began = time.perf_counter()
    async with TaskGroup() as group:
        for writer in range(sizes.writers):
            group.start_soon(write(writer), name=f"writer {writer}")
    return sizes.megabytes / (time.perf_counter() - began)
