"""The cost of options for calls: the same appends and Stats of servers started in several ways, in turn.

transport  in clear text, divided by those with mutual TLS
traces     where OpenTelemetry cannot be imported, divided by those where it is there and tracing is off; and by those
           where each call has its spans, which are not exported
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from bench.journal_specs import journal_change
from bench.report import emit
from bench.skeleton.key_sums import DIRECTORY_VARIABLE
from bench.skeleton.shards import APPLICATION, JOURNAL, SHARD
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.embedded.member import EmbeddedMemberProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.tls import TlsConfig
from broadsheet.serving.tracing import TRACES_VARIABLE
from broadsheet.wire.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

APPENDED = "bench/bytes"
ROUNDS = 21
APPENDS, APPEND_BYTES = 512, 64 << 10
STATS = 3_200
IN_FLIGHT = 32
DEADLINE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Way:
    """The options with which a broker and a member are started."""

    tls: TlsConfig | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of their environment."""


def measure_transport(bench: str) -> None:
    """Emit `tls_overhead_ratio` of both paths: calls a second in clear text over those with TLS."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ways = {"clear": _Way(), "tls": _Way(tls=_certificates(directory))}
        _emit_ratios(bench, directory, ways, {"tls": "tls_overhead_ratio"})


def measure_traces(bench: str) -> None:
    """Emit `trace_off_overhead_ratio` and `trace_on_overhead_ratio` of both paths: calls a second without over with."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        hidden = directory / "hidden" / "opentelemetry"
        hidden.mkdir(parents=True)
        (hidden / "__init__.py").write_text("raise ModuleNotFoundError(name=__name__)")
        ways = {
            "absent": _Way(variables={"PYTHONPATH": str(hidden.parent)}),
            "off": _Way(),
            "on": _Way(variables={TRACES_VARIABLE: "1", "OTEL_TRACES_EXPORTER": "none"}),
        }
        figures = {"off": "trace_off_overhead_ratio", "on": "trace_on_overhead_ratio"}
        _emit_ratios(bench, directory, ways, figures)


def _emit_ratios(
    bench: str, directory: Path, ways: Mapping[str, _Way], figures: Mapping[str, str]
) -> None:
    """Emit how the first way stands to others, by their figures' names."""
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    first = next(iter(ways))
    for path, rates in asyncio.run(_measure(directory, ways)).items():
        for way, figure in figures.items():
            ratio = rates[first] / rates[way]
            emit(bench, figure, ratio, "ratio", path=path, in_flight=IN_FLIGHT)


def _certificates(directory: Path) -> TlsConfig:
    authority = trustme.CA()
    certificate = authority.issue_cert(
        "127.0.0.1", "localhost", not_after=datetime.now(UTC) + timedelta(days=1)
    )
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_pem.write_to_path(directory / "all.key")
    for index, part in enumerate(certificate.cert_chain_pems):
        part.write_to_path(directory / "all.pem", append=index > 0)
    return TlsConfig(
        cert_file=directory / "all.pem",
        key_file=directory / "all.key",
        ca_file=directory / "ca.pem",
        client_ca_file=directory / "ca.pem",
    )


async def _measure(directory: Path, ways: Mapping[str, _Way]) -> dict[str, dict[str, float]]:
    """Return calls a second, by path and way."""
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(EmbeddedEtcdProcess(directory / "etcd"))
        appends: dict[str, Callable[[], Awaitable[object]]] = {}
        stats: dict[str, Callable[[], Awaitable[object]]] = {}
        for name, way in ways.items():
            with _environment(way.variables):
                broker = EmbeddedBrokerProcess(directory / name, tls=way.tls)
                stack.enter_context(broker)
                policy = TransportPolicy(tls=way.tls)
                journals = await stack.enter_async_context(
                    JournalClient(broker.address, policy=policy)
                )
                await journals.apply([journal_change(JOURNAL), journal_change(APPENDED)])
                content = os.urandom(APPEND_BYTES)
                appends[name] = lambda journals=journals, content=content: journals.append(  # type: ignore[misc]
                    APPENDED, content
                )
                shards = await stack.enter_async_context(
                    _member(directory, name, [etcd.endpoint, broker.address], way.tls)
                )
                stats[name] = lambda shards=shards: shards.stat(SHARD)  # type: ignore[misc]
        found: dict[str, dict[str, float]] = {}
        for path, calls, total in (("append", appends, APPENDS), ("stat", stats, STATS)):
            rates: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, call in calls.items():
                    rates[name].append(await _rate(call, total))
            found[path] = {name: statistics.median(each) for name, each in rates.items()}
        return found


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started in the block."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


async def _rate(call: Callable[[], Awaitable[object]], total: int) -> float:
    async def repeat() -> None:
        for _ in range(total // IN_FLIGHT):
            await call()

    began = time.perf_counter()
    async with TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.start_soon(repeat(), name="calls")
    return total / (time.perf_counter() - began)


@asynccontextmanager
async def _member(
    directory: Path, name: str, servers: list[str], tls: TlsConfig | None
) -> AsyncIterator[ShardClient]:
    """Run a member with one shard, and yield a client of it once the shard is served."""
    etcd, broker = servers
    arguments = ["--etcd", etcd, "--broker", broker, "--root", f"/bench/{name}", "--port", "0"]
    arguments += ["--log-level", "warning"]
    if tls is not None:
        for option, file in (
            ("--tls-cert", tls.cert_file),
            ("--tls-key", tls.key_file),
            ("--tls-ca", tls.ca_file),
            ("--tls-client-ca", tls.client_ca_file),
        ):
            arguments += [option, str(file)]
    member = EmbeddedMemberProcess(APPLICATION, arguments, log_file=directory / f"{name}.log")
    try:
        async with ShardClient(member.wait_until_ready(), tls=tls) as client:
            spec = ShardSpec(id=SHARD, sources=[ShardSpec.Source(journal=JOURNAL)])
            spec.max_txn_duration.FromSeconds(1)
            await client.apply([ApplyRequest.Change(upsert=spec)])
            async with asyncio.timeout(DEADLINE_SECONDS):
                async for table in client.watch():
                    row = table.get(SHARD)
                    if row and [each.code for each in row.status] == [ReplicaStatus.PRIMARY]:
                        break
            yield client
    finally:
        member.kill()
