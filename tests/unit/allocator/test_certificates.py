"""Whom a certificate names, and which names a server's must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broadsheet.runtime.errors import ValidationError
from broadsheet.security.certificates import has_server_names, peer_identity
from broadsheet.security.tls import TlsConfig, require_server_names
from tests.support.certificates import CertificateAuthority, self_signed


@pytest.mark.parametrize(
    ("named", "identity"),
    [
        ({"common_name": "billing"}, "billing"),
        ({"hosts": ["Billing.Test"], "common_name": "x"}, "billing.test"),
        ({"hosts": ["*.test", "a.test"]}, "a.test"),
        ({"hosts": ["*.test"], "common_name": "x"}, "x"),
        ({"uris": ["spiffe://td/ns/a"], "hosts": ["a.test"]}, "spiffe://td/ns/a"),
        ({"uris": ["https://a.test/"], "hosts": ["b.test"]}, "b.test"),
        # Two SPIFFE ids, or one that is malformed: another name of the certificate must not be taken instead.
        ({"uris": ["spiffe://td/a", "spiffe://td/b"], "hosts": ["a.test"]}, None),
        ({"uris": ["spiffe://td/a", "https://b.test/"]}, None),
        ({"uris": ["SPIFFE://td/a"], "hosts": ["a.test"]}, None),
        ({"uris": ["spiffe://td/a/../admin"]}, None),
        ({"uris": ["spiffe://td/a?b"]}, None),
        ({"uris": ["spiffe://td/" + "a" * 3000]}, None),
        # A common name is free text: it must not pass for an identity of another kind.
        ({"common_name": "spiffe://td/admin"}, None),
        ({"common_name": " admin"}, None),
        ({"common_name": "adm\ufffdin"}, None),
        # What follows a NUL is cut off by gRPC's own list of names.
        ({"common_name": "admin\x00.test"}, None),
        ({"uris": ["spiffe://td/maria\x00.attacker.org"]}, None),
        ({"hosts": ["a.test\x00.attacker.org"], "common_name": "b"}, None),
        ({"hosts": ["b.test", "a.test\x00.attacker.org"]}, None),
    ],
)
def test_a_certificate_names_one_identity_or_none(
    named: dict[str, Any], identity: str | None
) -> None:
    """Claims are granted by this name, so that a certificate must not be read as somebody else's. Plan: what gRPC
    itself makes of the names, which ends each at a NUL, is there as well, and does not count.
    """
    context = {
        "transport_security_type": [b"ssl"],
        "x509_pem_cert": [self_signed(**named)],
        "peer_uri": [b"spiffe://td/maria"],
        "peer_dns": [b"admin.test"],
        "x509_common_name": [b"admin"],
    }

    assert peer_identity(context) == identity


def test_a_connection_without_a_verified_certificate_has_no_identity() -> None:
    """Names count only where TLS verified them; what is no certificate names nobody."""
    pem = self_signed(common_name="admin")
    for kind in ([b"insecure"], [], [b"ssl", b"local"]):
        assert peer_identity({"transport_security_type": kind, "x509_pem_cert": [pem]}) is None
    damaged = pem[:120] + pem[-60:]
    for given in ([], [b""], [b"no certificate"], [damaged]):
        assert peer_identity({"transport_security_type": [b"ssl"], "x509_pem_cert": given}) is None


def test_server_certificate_with_a_common_name_alone_is_refused(tmp_path: Path) -> None:
    """GRPC's clients would believe such a name, which authorities check less, and other clients refuse it."""
    assert not has_server_names(self_signed(common_name="a.test"))
    assert not has_server_names(self_signed(uris=["spiffe://td/a"]))
    assert has_server_names(self_signed(hosts=["a.test"]))
    authority = CertificateAuthority(tmp_path)
    named = authority.certificate("server", "a.test")
    require_server_names(TlsConfig(cert_file=named.cert_file, key_file=named.key_file))
    plain = authority.certificate("plain", uris=("spiffe://td/a",))
    with pytest.raises(ValidationError, match=r"cert_file: expected the server's names.*plain"):
        require_server_names(TlsConfig(cert_file=plain.cert_file, key_file=plain.key_file))
