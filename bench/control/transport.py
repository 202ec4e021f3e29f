"""What TLS costs: the same appends and Stats in clear text and with mutual TLS, in turn."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from bench.journal_specs import journal_change
from bench.report import emit
from bench.skeleton.key_sums import DIRECTORY_VARIABLE
from bench.skeleton.shards import APPLICATION, JOURNAL, SHARD
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.allocator.runtime.tls import TlsConfig
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.embedded.broker import EmbeddedBrokerProcess
from broadsheet.consumer.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.consumer.embedded.member import EmbeddedMemberProcess
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.journal.transport import TransportPolicy
from broadsheet.consumer.protocol.shard_pb2 import ApplyRequest, ReplicaStatus, ShardSpec

APPENDED = "bench/bytes"
ROUNDS = 5
APPENDS, APPEND_BYTES = 512, 64 << 10
STATS = 3_200
IN_FLIGHT = 32
DEADLINE_SECONDS = 300.0


def measure(bench: str) -> None:
    """Emit `tls_overhead_ratio` of both paths: calls a second in clear text over those with TLS."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tls = _certificates(directory)
        os.environ[DIRECTORY_VARIABLE] = str(directory)
        asyncio.run(_measure(bench, directory, tls))


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


async def _measure(bench: str, directory: Path, tls: TlsConfig) -> None:
    transports: Mapping[str, TlsConfig | None] = {"clear": None, "tls": tls}
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(EmbeddedEtcdProcess(directory / "etcd"))
        appends: dict[str, Callable[[], Awaitable[object]]] = {}
        stats: dict[str, Callable[[], Awaitable[object]]] = {}
        for name, config in transports.items():
            broker = stack.enter_context(EmbeddedBrokerProcess(directory / name, tls=config))
            policy = TransportPolicy(tls=config)
            journals = await stack.enter_async_context(JournalClient(broker.address, policy=policy))
            await journals.apply([journal_change(JOURNAL), journal_change(APPENDED)])
            content = os.urandom(APPEND_BYTES)
            appends[name] = lambda journals=journals, content=content: journals.append(  # type: ignore[misc]
                APPENDED, content
            )
            shards = await stack.enter_async_context(
                _member(directory, name, [etcd.endpoint, broker.address], config)
            )
            stats[name] = lambda shards=shards: shards.stat(SHARD)  # type: ignore[misc]
        for path, calls, total in (("append", appends, APPENDS), ("stat", stats, STATS)):
            rates: dict[str, list[float]] = {name: [] for name in transports}
            for _ in range(ROUNDS):
                for name, call in calls.items():
                    rates[name].append(await _rate(call, total))
            clear, encrypted = (statistics.median(rates[name]) for name in transports)
            ratio = clear / encrypted
            emit(bench, "tls_overhead_ratio", ratio, "ratio", path=path, in_flight=IN_FLIGHT)


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
