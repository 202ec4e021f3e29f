"""A journal's stored history, read where it lies and through its broker.

read_mb_per_s       one reader reads all stored fragments; path is direct or broker
read_mb_per_cpu_s   the same bytes by the CPU time of reader and broker together
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.dataplane.cluster import cpu_seconds
from bench.dataplane.rows import MESSAGE_BYTES, RowWriter
from bench.journal_specs import journal_change
from bench.report import emit
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.journals.transport import BULK_CHUNK_BYTES, TransportPolicy
from broadsheet.runtime.interpreter import serve_only
from broadsheet.wire.journal_pb2 import CompressionCodec

MEGABYTE = 1_000_000
CODECS = (CompressionCodec.NONE, CompressionCodec.ZSTANDARD, CompressionCodec.GZIP)
APPEND_ROWS = 10_000
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """The size of the measurement."""

    bytes: int = 512 << 20
    """Of each codec's journal."""
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class _Read:
    megabytes: float
    seconds: float
    cpu_seconds: float


def run(bench: str, plan: HistoryPlan) -> None:
    """Measure and print `read_mb_per_s` and `read_mb_per_cpu_s` of both paths, by codec."""
    serve_only()  # As a member does; otherwise the client's buffers cost more than the reading.
    with tempfile.TemporaryDirectory(prefix="history-") as name, asyncio.Runner() as runner:
        root = Path(name) / "store"
        root.mkdir()
        arguments = ("--file-root", str(root))
        paths = {"direct": DirectFragments(roots=(root,)), "broker": DirectFragments(enabled=False)}
        with EmbeddedBrokerProcess(Path(name) / "broker", arguments=arguments) as broker:
            for codec in CODECS:
                journal = f"dataplane/history-{codec}"
                end = runner.run(_fill(broker.address, journal, codec, plan))
                reads: dict[str, list[_Read]] = {path: [] for path in paths}
                for _ in range(plan.rounds):
                    for path, rules in paths.items():
                        reads[path].append(runner.run(_read(broker, journal, end, rules)))
                for path, found in reads.items():
                    _emit(bench, found, path=path, codec=CompressionCodec.Name(codec))


def _emit(bench: str, reads: list[_Read], **params: str) -> None:
    rate = statistics.median(each.megabytes / each.seconds for each in reads)
    emit(bench, "read_mb_per_s", rate, "MB/s", **params)
    work = statistics.median(each.megabytes / each.cpu_seconds for each in reads)
    emit(bench, "read_mb_per_cpu_s", work, "MB/CPU s", **params)


async def _fill(
    address: str, journal: str, codec: CompressionCodec.ValueType, plan: HistoryPlan
) -> int:
    """Append rows; return the end of what is stored once all but the last fragment is."""
    change = journal_change(journal)
    change.upsert.fragment.compression_codec = codec
    change.upsert.fragment.length = max(1024, min(64 << 20, plan.bytes // 8))
    change.upsert.fragment.stores.append("file:///store/")
    rows = RowWriter()
    policy = TransportPolicy(chunk_bytes=BULK_CHUNK_BYTES)
    async with JournalClient(address, policy=policy) as client:
        await client.apply([change])
        # Ten at least, so that some fragments are sealed however little is measured.
        for _ in range(max(10, plan.bytes // (APPEND_ROWS * MESSAGE_BYTES))):
            await client.append(journal, rows.json_lines(APPEND_ROWS).tobytes())
        while True:
            sealed = [each.spec for each in await client.list_fragments(journal)][:-1]
            if sealed and all(each.backing_store for each in sealed):
                return sealed[-1].end
            await asyncio.sleep(POLL_SECONDS)


async def _read(
    broker: EmbeddedBrokerProcess, journal: str, end: int, rules: DirectFragments
) -> _Read:
    received = 0
    async with JournalClient(broker.address, policy=TransportPolicy(fragments=rules)) as client:
        began = time.perf_counter()
        cpu_began = time.process_time() + cpu_seconds(broker.pid)
        async for span in client.reader(journal, end_offset=end, block=False):
            received += len(span.content)
        cpu = time.process_time() + cpu_seconds(broker.pid) - cpu_began
        seconds = time.perf_counter() - began
        direct = client.read_totals.direct_bytes
    assert received == end, f"read {received} of {end} bytes"
    assert direct == (end if rules.enabled else 0), f"{direct} of {end} bytes were read directly"
    return _Read(end / MEGABYTE, seconds, max(cpu, 1e-3))
