"""Each listener, under each way of guarding it, against all that strangers send.

CI sends each protocol's oddities at once, and looks at every listener after them. `STRANGER_ROUNDS=n` (see
`make nightly-strangers`) sends them one at a time, n times, and looks after each.
"""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.security.auth import TrustConfig
from broadsheet.serving.admin import metrics_server
from tests.integration.consumer.test_admin_guards import HOST, WAYS, GuardingWay
from tests.support.certificates import Certificate, CertificateAuthority
from tests.support.members import Cluster
from tests.support.stranger_bytes import ODDITIES

ROUNDS = int(os.environ.get("STRANGER_ROUNDS", "0"))
CI_WAYS = {
    "nothing, on loopback",
    "keys",
    "keys that are not asked for yet",
    "certificates",
    "identities",
}
"""Each guard once; nights try them together, too."""
LISTEN_SECONDS = 0.2
"""How long a stranger waits for an answer, which it drops."""
GROWTH_BYTES_MAX = 256 << 20
"""Of the process, by all that is sent to its five listeners."""
TRIED = [each for each in WAYS if ROUNDS or each.name in CI_WAYS]


@dataclass(frozen=True, slots=True)
class _Listener:
    name: str
    address: str
    serves: Callable[[], Awaitable[bool]]
    """Asks as a good caller does."""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def _send(port: int, sent: bytes, tls: ssl.SSLContext | None) -> None:
    """Send bytes as a stranger does, who reads what comes back for a moment, and hangs up."""
    with suppress(OSError, ssl.SSLError, TimeoutError):
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(HOST, port, ssl=tls)
            try:
                writer.write(sent)
                async with asyncio.timeout(LISTEN_SECONDS):
                    await writer.drain()
                    while await reader.read(1 << 16):
                        pass
            finally:
                writer.transport.abort()


def _grpc_caller(address: str, authority: CertificateAuthority, own: Certificate) -> Any:
    async def serves() -> bool:
        credentials = grpc.ssl_channel_credentials(
            authority.ca_file.read_bytes(), own.key_file.read_bytes(), own.cert_file.read_bytes()
        )
        target = address.partition("://")[2]
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
        channel = (
            grpc.aio.secure_channel(target, credentials, options)
            if address.startswith("https")
            else grpc.aio.insecure_channel(target, options)
        )
        async with channel:
            answer = await HealthStub(channel).Check(HealthCheckRequest(), timeout=20)
            return bool(answer.status == HealthCheckResponse.SERVING)

    return serves


def _http_caller(url: str, tls: ssl.SSLContext) -> Any:
    async def serves() -> bool:
        async with aiohttp.ClientSession() as session, session.get(url, ssl=tls) as answer:
            await answer.read()
            return answer.status == 200

    return serves


def _context(authority: CertificateAuthority, own: Certificate | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    if own is not None:
        context.load_cert_chain(own.cert_file, own.key_file)
    return context


def _waves() -> Iterator[tuple[str, list[bytes]]]:
    """Return what is sent between two looks at the listeners."""
    for protocol, table in ODDITIES.items():
        if not ROUNDS:
            yield protocol, list(table.values())
    for number in range(ROUNDS):
        for protocol, table in ODDITIES.items():
            for name, sent in table.items():
                yield f"{protocol}, {name}, round {number}", [sent]


@pytest.mark.etcd
@pytest.mark.timeout(300 + 120 * ROUNDS)
@pytest.mark.parametrize("way", TRIED, ids=lambda each: each.name)
async def test_listeners_go_on_whatever_strangers_send(
    way: GuardingWay, cluster: Cluster, tmp_path: Path
) -> None:
    """A stranger needs no credential to send bytes, and one frame once ended a server. Plan: to all listeners at once,
    in clear text and in TLS, with a known certificate and a stranger's; then good callers are served, nothing was an
    internal error, and memory is bounded.
    """
    authority = CertificateAuthority(tmp_path)
    (tmp_path / "other").mkdir()
    other = CertificateAuthority(tmp_path / "other", "other")
    settings: dict[str, Any] = {"admin_port": 0, **way.settings}
    if way.mutual:
        settings["tls"] = authority.tls("server", HOST, mutual=True)
    if way.identities:
        file = tmp_path / "identities.yaml"
        file.write_text("identities:\n- {identity: known.test, capabilities: [ALL]}\n")
        settings["trust"] = TrustConfig(identities_file=str(file))
    known = authority.certificate("known", "known.test")
    tls = _context(authority, known)
    strangers = [None, tls, _context(authority, other.certificate("unknown", "known.test"))]
    cluster.settings.update(settings)
    with capture_logs() as logs:
        async with (
            Broker(BrokerConfig(data_dir=tmp_path / "guarded", **settings)) as broker,
            cluster.member("a", broker_address=cluster.broker_address) as member,
            metrics_server(HOST, 0, CollectorRegistry()) as metrics,
        ):
            listeners = [
                _Listener(name, each, _grpc_caller(each, authority, known))
                for name, each in (("member", member.address), ("broker", broker.address))
            ] + [
                _Listener(name, each, _http_caller(f"{each}/{path}", tls))
                for name, each, path in (
                    ("member's admin port", member.admin_address, "livez"),
                    ("broker's admin port", broker.admin_address, "livez"),
                    ("metrics", metrics.address, "metrics"),
                )
            ]
            before = _resident_bytes()
            for wave, sent in _waves():
                await asyncio.gather(
                    *(
                        _send(listener.port, each, context)
                        for listener in listeners
                        for each in sent
                        for context in (
                            strangers if listener.address.startswith("https") else strangers[:1]
                        )
                    )
                )
                served = await asyncio.gather(*(each.serves() for each in listeners))
                assert all(served), (wave, served)
            assert _resident_bytes() - before < GROWTH_BYTES_MAX
    assert [each for each in logs if each["log_level"] in ("error", "critical")] == []
