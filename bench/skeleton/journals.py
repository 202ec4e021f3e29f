"""Bytes a second into and out of the embedded broker, beside a bare gRPC stream of the same chunks."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio

from bench.bare_server import OPTIONS, bare_server
from bench.journal_specs import journal_change
from bench.report import alternate, emit_pair
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient

MEGABYTE = 1_000_000
APPEND_BYTES = 8 << 20
APPENDS = 24
CHUNK_BYTES = 512 << 10
ROUNDS = 3
JOURNAL = "bench/bytes"


def run(bench: str) -> None:
    """Measure and print `append_mb_per_s` (8 MiB appends, durable) and `read_mb_per_s`."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with (
            EmbeddedBrokerProcess(directory / "broker") as broker,
            bare_server(directory) as bare,
        ):
            appended = alternate(
                lambda: asyncio.run(_append(broker.address)),
                lambda: asyncio.run(_swallow(bare)),
                ROUNDS,
            )
            emit_pair(
                bench,
                "append_mb_per_s",
                appended,
                "MB/s",
                limit="bare gRPC stream of the same bytes, thrown away",
                append_bytes=APPEND_BYTES,
                durability="always",
            )
            read = alternate(
                lambda: asyncio.run(_read(broker.address)),
                lambda: asyncio.run(_pour(bare)),
                ROUNDS,
            )
            emit_pair(
                bench,
                "read_mb_per_s",
                read,
                "MB/s",
                limit="bare gRPC stream of 256 KiB chunks out of memory",
                bytes=APPEND_BYTES * APPENDS,
            )


async def _append(address: str) -> float:
    content = bytes(APPEND_BYTES)
    async with JournalClient(address) as client:
        await client.apply([journal_change(JOURNAL)])
        began = time.perf_counter()
        for _ in range(APPENDS):
            await client.append(JOURNAL, content)
        return APPEND_BYTES * APPENDS / MEGABYTE / (time.perf_counter() - began)


async def _swallow(address: str) -> float:
    chunk = bytes(CHUNK_BYTES)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(APPEND_BYTES // CHUNK_BYTES):
            yield chunk

    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        call: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(
            "/bare/swallow"
        )
        began = time.perf_counter()
        for _ in range(APPENDS):
            await call(chunks())
        return APPEND_BYTES * APPENDS / MEGABYTE / (time.perf_counter() - began)


async def _read(address: str) -> float:
    total = APPEND_BYTES * APPENDS
    async with JournalClient(address) as client:
        began = time.perf_counter()
        received = 0
        async for span in client.reader(JOURNAL, end_offset=total):
            received += len(span.content)
        assert received == total, f"read {received} of {total} bytes"
        return total / MEGABYTE / (time.perf_counter() - began)


async def _pour(address: str) -> float:
    chunk_bytes = 256 << 10
    count = APPEND_BYTES * APPENDS // chunk_bytes
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        pour: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/bare/pour")
        began = time.perf_counter()
        async for _ in pour(b"%d %d" % (chunk_bytes, count)):
            pass
        return chunk_bytes * count / MEGABYTE / (time.perf_counter() - began)
