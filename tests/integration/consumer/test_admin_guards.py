"""Every route of every admin port, under each way of guarding a process, asked by each kind of caller."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.security.auth import Capability, Claims, KeyedAuth, TrustConfig
from broadsheet.serving.admin import AdminRoute, AdminServer
from tests.support.certificates import Certificate, CertificateAuthority
from tests.support.eventually import eventually
from tests.support.members import Cluster

HOST = "127.0.0.1"
KEYS = b64encode(b"a key of the members and the brokers").decode()
TOKEN = dict(KeyedAuth(KEYS).metadata(Claims(capability=Capability.ALL)))["authorization"]
REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class _Caller:
    """What a caller shows."""

    token: str = ""
    certificate: str = ""
    """Name of its certificate."""
    host: str = ""
    """The request's host, if it is not the server's address: of a page whose name leads to this machine."""

    @property
    def headers(self) -> dict[str, str]:
        shown = {"Authorization": self.token, "Host": self.host}
        return {name: value for name, value in shown.items() if value}


NOBODY, REBOUND = _Caller(), _Caller(host="page.test")
BEARER, FORGER = _Caller(token=f"Bearer {TOKEN.split()[1]}"), _Caller(token="Bearer a.b.c")
BINARY = _Caller(token="Bearer \udcff\udcfe")
KNOWN, STRANGER = _Caller(certificate="known"), _Caller(certificate="stranger")
CALLERS = (NOBODY, REBOUND, BEARER, FORGER, BINARY, KNOWN, STRANGER)


@dataclass(frozen=True, slots=True)
class GuardingWay:
    """A way of guarding a process, and the callers whom its guarded routes serve."""

    name: str
    serves: Sequence[_Caller]
    settings: Mapping[str, Any] = field(default_factory=dict)
    mutual: bool = False
    identities: bool = False


WAYS = (
    GuardingWay("nothing, on loopback", (NOBODY, BEARER, FORGER, BINARY)),
    GuardingWay("keys", (BEARER,), {"auth_keys": KEYS}),
    GuardingWay("keys that are not asked for yet", (NOBODY, BEARER), {"auth_keys": f"{KEYS} AA=="}),
    GuardingWay("certificates", (KNOWN, STRANGER), mutual=True),
    GuardingWay("certificates and keys", (BEARER,), {"auth_keys": KEYS}, mutual=True),
    GuardingWay(
        "certificates and optional keys",
        (KNOWN, STRANGER),
        {"auth_keys": f"{KEYS} AA=="},
        mutual=True,
    ),
    GuardingWay("identities", (BEARER, KNOWN), {"auth_keys": KEYS}, mutual=True, identities=True),
)


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[AdminServer]:
    """Admin servers that are started from now on."""
    started: list[AdminServer] = []
    start = AdminServer.__aenter__

    async def noted(server: AdminServer) -> AdminServer:
        started.append(server)
        return await start(server)

    monkeypatch.setattr(AdminServer, "__aenter__", noted)
    return started


@pytest.mark.etcd
@pytest.mark.parametrize("way", WAYS, ids=lambda each: each.name)
async def test_guarded_routes_serve_whom_the_process_admits(
    way: GuardingWay, cluster: Cluster, ports: list[AdminServer], tmp_path: Path
) -> None:
    """A guard is decided for each port: with certificates alone, the admin port had none, and deleted shards for all
    who came. Plan: a broker and a member of each way; each caller asks for each route. Public routes serve all of them.
    """
    authority = CertificateAuthority(tmp_path)
    settings: dict[str, Any] = {"admin_port": 0, **way.settings}
    if way.mutual:
        settings["tls"] = authority.tls("server", HOST, mutual=True)
    if way.identities:
        file = tmp_path / "identities.yaml"
        file.write_text("identities:\n- {identity: known.test, capabilities: [ALL]}\n")
        settings["trust"] = TrustConfig(identities_file=str(file))
    shown = {name: authority.certificate(name, f"{name}.test") for name in ("known", "stranger")}
    cluster.settings.update(settings)
    wrong: list[str] = []
    async with (
        Broker(BrokerConfig(data_dir=tmp_path / "guarded", **settings)),
        cluster.member("a", broker_address=cluster.broker_address),
    ):
        assert len(ports) == 2
        for server in ports:
            for caller in CALLERS if way.mutual else CALLERS[:5]:
                tls = _client(authority, shown.get(caller.certificate)) if way.mutual else None
                async with aiohttp.ClientSession() as session:
                    for route in server.routes:
                        status = await _status(session, server, route, caller, tls)
                        is_served = route.require is None or caller in way.serves
                        if (status not in REFUSED) != is_served or status == 500:
                            wrong.append(f"{route.method} {route.path}: {status} for {caller}")
    assert wrong == []


def _client(authority: CertificateAuthority, own: Certificate | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    if own is not None:
        context.load_cert_chain(own.cert_file, own.key_file)
    return context


async def _status(
    session: aiohttp.ClientSession,
    server: AdminServer,
    route: AdminRoute,
    caller: _Caller,
    tls: ssl.SSLContext | None,
) -> int:
    method = "GET" if route.method == "*" else route.method
    path = route.path.replace("{name}", "x").replace("{path:.*}", "x")
    async with session.request(
        method, server.address + path, headers=caller.headers, ssl=tls or True
    ) as answer:
        return answer.status


async def test_session_of_a_withdrawn_authority_is_not_resumed(tmp_path: Path) -> None:
    """A client that resumes a session of TLS shows no certificate, so it was believed for as long as it came back,
    though its authority was withdrawn or its certificate had expired. Plan: sessions of each version, then a change.
    """
    authority = CertificateAuthority(tmp_path)
    (tmp_path / "next").mkdir()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.ca_file.read_bytes())
    tls = replace(authority.tls("server", HOST), client_ca_file=trusted)
    own = authority.certificate("old")
    contexts = [_client(authority, own) for _ in range(2)]
    contexts[0].maximum_version = ssl.TLSVersion.TLSv1_2
    contexts[1].minimum_version = ssl.TLSVersion.TLSv1_3

    config = BrokerConfig(data_dir=tmp_path / "broker", tls=tls, admin_port=0)
    async with Broker(config) as broker:
        port = int(broker.admin_address.rpartition(":")[2])
        sessions = [await asyncio.to_thread(_resumed, port, each, None) for each in contexts]
        again = [
            await asyncio.to_thread(_resumed, port, context, session)
            for context, (_, _, session) in zip(contexts, sessions, strict=True)
        ]
        assert [status for status, _, _ in sessions] == [200, 200]
        # The library remembers sessions of TLS 1.2 for 5 minutes; there are no tickets that could be renewed for ever.
        assert [each[:2] for each in again] == [(200, True), (200, False)]
        trusted.write_bytes(CertificateAuthority(tmp_path / "next", "next").ca_file.read_bytes())

        async def are_refused() -> bool:
            return all(
                [
                    (await asyncio.to_thread(_resumed, port, context, session))[0] != 200
                    for context, (_, _, session) in zip(contexts, sessions, strict=True)
                ]
            )

        await eventually(are_refused)


def _resumed(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[int, bool, ssl.SSLSession | None]:
    """Ask for a guarded page with the session of a former connection; return the status (0: no answer), whether the
    session was resumed, and the session to come back with.
    """
    request = b"GET /debug/vars HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = b""
    connection = socket.create_connection((HOST, port), timeout=10)
    try:
        with context.wrap_socket(connection, server_hostname=HOST, session=session) as tls:
            tls.sendall(request)
            while received := tls.recv(65_536):
                answer += received
            status = int(answer.split()[1]) if answer else 0
            return status, bool(tls.session_reused), tls.session
    except (ssl.SSLError, ConnectionError):
        return 0, False, None


async def test_port_follows_the_authorities_of_clients(tmp_path: Path) -> None:
    """An authority that is withdrawn must be believed no longer, and its successor at once, as on gRPC's port."""
    authority = CertificateAuthority(tmp_path)
    (tmp_path / "next").mkdir()
    following = CertificateAuthority(tmp_path / "next", "following")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.ca_file.read_bytes())
    tls = replace(authority.tls("server", HOST), client_ca_file=trusted)
    config = BrokerConfig(data_dir=tmp_path / "broker", tls=tls, admin_port=0)
    old, new = authority.certificate("old"), following.certificate("new")

    async with Broker(config) as broker, aiohttp.ClientSession() as session:

        async def is_served(own: Certificate) -> bool:
            url = f"{broker.admin_address}/debug/vars"
            try:
                async with session.get(url, ssl=_client(authority, own)) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        assert (await is_served(old), await is_served(new)) == (True, False)
        trusted.write_bytes(following.ca_file.read_bytes())

        async def has_changed() -> bool:
            return (await is_served(old), await is_served(new)) == (False, True)

        await eventually(has_changed)
