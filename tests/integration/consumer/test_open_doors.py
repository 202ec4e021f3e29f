"""What is served and asked in clear text: never where TLS was asked for, and never unguarded by oversight."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.parts import new_guard, new_server
from broadsheet.runtime.errors import ValidationError
from tests.support.certificates import CertificateAuthority
from tests.support.documents import REPOSITORY, product_folders

CLEAR_TEXT = re.compile(r"insecure_channel\(|add_insecure_port\(")
MAY_SPEAK_IT = {
    "allocator/etcd/channel.py",
    "broadsheet/security/tls.py",
    "broadsheet/security/endpoints.py",
    "broadsheet/serving/grpc_server.py",  # passes on what a server is told
    "examples/flights/client.py",
    "examples/templates/sqlite/hello_sqlite/query.py",  # refuses an https address
    "spark_bridge/routing/channels.py",
}
"""Modules that choose between clear text and TLS by the address, or refuse https."""


def test_clear_text_is_spoken_where_the_address_is_looked_at_alone() -> None:
    """An https address was taken for an http one: the token went over the network in clear text, and nobody knew."""
    found = {
        str(path.relative_to(REPOSITORY))
        for folder in product_folders()
        for path in folder.rglob("*.py")
        if CLEAR_TEXT.search(path.read_text())
    }
    assert found == MAY_SPEAK_IT


def _new_server(config: MemberConfig) -> tuple[grpc.aio.Server, int]:
    registry = CollectorRegistry()
    return new_server(config, registry, new_guard(config, registry))


async def test_member_without_keys_does_not_listen_beyond_loopback() -> None:
    """Whoever reaches such a member may read and change its shards: the broker refuses that, and so must a member."""
    config = MemberConfig(
        root="/broadsheet/app",
        suffix="member-1",
        broker_address="http://127.0.0.1:8080",
        bind_host="0.0.0.0",  # noqa: S104 - the point of the test
    )

    with pytest.raises(ValidationError, match=r"auth_keys: expected keys.*--allow-unauthenticated"):
        _new_server(config)


async def test_member_that_asks_for_certificates_needs_no_keys(tmp_path: Path) -> None:
    """Certificates guard a member as keys do."""
    config = MemberConfig(
        root="/broadsheet/app",
        suffix="member-1",
        broker_address="http://127.0.0.1:8080",
        bind_host="0.0.0.0",  # noqa: S104 - the point of the test
        tls=CertificateAuthority(tmp_path).tls("server", "127.0.0.1", mutual=True),
    )

    server, port = _new_server(config)
    await server.stop(None)
    assert port
