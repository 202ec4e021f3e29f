"""TLS, client certificates, users and passwords, against a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from broadsheet.allocator.errors import EtcdAuthenticationError, EtcdUnavailableError
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.embedded.etcd import EmbeddedEtcd, EtcdServerTls
from tests.support.certificates import CertificateAuthority, yesterday
from tests.support.etcd_users import call_auth
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.etcd

REQUEST_SECONDS = 30.0
AT_ONCE_SECONDS = 20.0
"""A refusal that came later would be that of a deadline."""


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    """An authority of the test's own."""
    return CertificateAuthority(tmp_path)


@pytest.fixture
async def tls_server(authority: CertificateAuthority) -> AsyncIterator[EmbeddedEtcd]:
    """An etcd that asks its clients for a certificate."""
    made = authority.certificate("server", "127.0.0.1")
    tls = EtcdServerTls(
        cert_file=made.cert_file, key_file=made.key_file, client_ca_file=authority.ca_file
    )
    async with EmbeddedEtcd(listen="tcp", tls=tls) as running:
        yield running


async def test_tls_with_a_client_certificate_works_for_calls_and_watches(
    authority: CertificateAuthority, tls_server: EmbeddedEtcd
) -> None:
    """Both sides show certificates of one authority; an endpoint without a scheme is spoken to with TLS too."""
    own = authority.certificate("client", "client.test")
    config = EtcdConfig(
        endpoints=(tls_server.endpoint.removeprefix("https://"),),
        ca_file=authority.ca_file,
        cert_file=own.cert_file,
        key_file=own.key_file,
    )

    async with EtcdClient(config) as client, asyncio.timeout(DEADLINE_SECONDS):
        revision = await client.put(b"/k", b"v")
        async with aclosing(client.watch(b"/k", start_revision=revision)) as batches:
            batch = await anext(batches)

    assert batch.header.revision == revision


async def test_tls_without_a_client_certificate_fails_and_names_the_endpoint(
    authority: CertificateAuthority, tls_server: EmbeddedEtcd
) -> None:
    """Etcd closes the connection; the caller learns where."""
    config = EtcdConfig(
        endpoints=(tls_server.endpoint,), ca_file=authority.ca_file, request_timeout_seconds=1
    )

    async with EtcdClient(config) as client:
        with pytest.raises(EtcdUnavailableError, match=r"https://127\.0\.0\.1"):
            await client.put(b"/k", b"v")


async def test_tls_with_a_renewed_certificate_needs_no_other_client(
    authority: CertificateAuthority, tls_server: EmbeddedEtcd
) -> None:
    """A client outlives its certificate: once the files hold another, its next connection uses that."""
    own = authority.certificate("client", "client.test", expires_at=yesterday())
    config = EtcdConfig(
        endpoints=(tls_server.endpoint,),
        ca_file=authority.ca_file,
        cert_file=own.cert_file,
        key_file=own.key_file,
        request_timeout_seconds=1,
    )

    async with EtcdClient(config) as client:
        with pytest.raises(EtcdUnavailableError):
            await client.put(b"/k", b"v")
        authority.certificate("client", "client.test")

        async def written() -> bool:
            try:
                return await client.put(b"/k", b"v") > 0
            except EtcdUnavailableError:
                return False

        await eventually(written, timeout_seconds=300)


@pytest.mark.parametrize("seconds", [3.0, 4.8])
async def test_tls_with_a_stranger_for_a_server_fails_and_says_so(
    authority: CertificateAuthority, tls_server: EmbeddedEtcd, tmp_path: Path, seconds: float
) -> None:
    """A server whose certificate another authority signed is not spoken to; the cause is told at any deadline."""
    other = CertificateAuthority(tmp_path, "other")
    config = EtcdConfig(
        endpoints=(tls_server.endpoint,), ca_file=other.ca_file, request_timeout_seconds=seconds
    )

    async with EtcdClient(config) as client:
        for _ in range(2):
            with pytest.raises(EtcdUnavailableError, match=r"(?i)certificate"):
                await client.get_range(b"/k")


@pytest.fixture
async def auth_server() -> AsyncIterator[EmbeddedEtcd]:
    """An etcd with users `root` (password `secret`) and `guest` (password `guest`, may do nothing)."""
    async with EmbeddedEtcd(listen="tcp") as running:
        for path, body in (
            ("user/add", {"name": "root", "password": "secret"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "guest", "password": "guest"}),
            ("enable", {}),
        ):
            await asyncio.to_thread(call_auth, running.endpoint, path, body)
        yield running


def _as(
    server: EmbeddedEtcd, username: str | None = None, password: str | None = None
) -> EtcdConfig:
    return EtcdConfig(
        endpoints=(server.endpoint,),
        username=username,
        password=password,
        request_timeout_seconds=REQUEST_SECONDS,
    )


async def test_user_logs_in_again_when_the_token_is_no_longer_valid(
    auth_server: EmbeddedEtcd,
) -> None:
    """A restart makes etcd forget its tokens: writes, reads and an open watch go on with a new one, unnoticed."""
    async with (
        EtcdClient(_as(auth_server, "root", "secret")) as client,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        first = await client.put(b"/k", b"1")
        async with aclosing(client.watch(b"/k", start_revision=first)) as batches:
            assert (await anext(batches)).header.revision == first
            await auth_server.restart()

            second = await client.put(b"/k", b"2")

            assert (await client.get_range(b"/k")).kvs[0].value == b"2"
            assert (await anext(batches)).header.revision == second
            lease = await client.lease_grant(60)
            assert await client.lease_keep_alive_once(lease) == 60


async def test_watch_cut_off_after_its_token_ended_logs_in_again(auth_server: EmbeddedEtcd) -> None:
    """Etcd tells a watch with a token that has ended that permission is denied, as it does a user without rights. An
    idle member makes no other call that would get it a new token, and must not end.
    """
    async with TcpProxy(auth_server.endpoint) as proxy, asyncio.timeout(DEADLINE_SECONDS):
        config = replace(_as(auth_server, "root", "secret"), endpoints=(proxy.endpoint,))
        async with EtcdClient(config) as client, EtcdClient(_as(auth_server)) as other:
            first = await client.put(b"/k", b"1")
            async with aclosing(client.watch(b"/k", start_revision=first)) as batches:
                await anext(batches)
                for number in range(2):
                    await proxy.cut()
                    # All tokens end with authentication.
                    await asyncio.to_thread(_set_auth, auth_server.endpoint, "disable")
                    written = await other.put(b"/k", b"%d" % number)
                    await asyncio.to_thread(_set_auth, auth_server.endpoint, "enable")
                    await proxy.heal()

                    assert (await anext(batches)).header.revision == written


def _set_auth(endpoint: str, what: str) -> None:
    login = {"name": "root", "password": "secret"}
    token = "" if what == "enable" else call_auth(endpoint, "authenticate", login)
    call_auth(endpoint, what, {}, token=token)


async def test_user_with_a_wrong_password_is_refused_at_once(auth_server: EmbeddedEtcd) -> None:
    """The error is about credentials, not about availability, for calls and watches alike."""
    async with (
        EtcdClient(_as(auth_server, "root", "wrong")) as client,
        asyncio.timeout(AT_ONCE_SECONDS),
    ):
        with pytest.raises(EtcdAuthenticationError, match="password"):
            await client.put(b"/k", b"v")
        with pytest.raises(EtcdAuthenticationError, match="password"):
            await anext(client.watch(b"/k", start_revision=1))


async def test_user_without_permission_is_refused_at_once(auth_server: EmbeddedEtcd) -> None:
    """Known, but not allowed: said so, for calls and watches alike."""
    async with (
        EtcdClient(_as(auth_server, "guest", "guest")) as client,
        asyncio.timeout(AT_ONCE_SECONDS),
    ):
        with pytest.raises(EtcdAuthenticationError, match="permission denied"):
            await client.put(b"/k", b"v")
        with pytest.raises(EtcdAuthenticationError, match=r"(?i)permission"):
            await anext(client.watch(b"/k", start_revision=1))


async def test_no_user_where_one_is_needed_is_refused_at_once(auth_server: EmbeddedEtcd) -> None:
    """The configuration has no user, the server wants one."""
    async with (
        EtcdClient(_as(auth_server)) as client,
        asyncio.timeout(AT_ONCE_SECONDS),
    ):
        with pytest.raises(EtcdAuthenticationError, match="user name is empty"):
            await client.get_range(b"/k")
